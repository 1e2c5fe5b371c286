"""The error of a subscription that there is not."""

import pytest

from milepost.engine.declare.declaration import unknown_subscription

KNOWN = [
    ("default", "emails"),
    ("default", "invoices"),
    ("order-management", "shipping"),
    ("order-management", "emails"),
    ("billing", "shipping"),
]


@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        ("default", "emalis", "'default/emalis': did you mean 'default/emails'?"),
        ("order-management", "emalis", "did you mean 'order-management/emails'?"),
        ("default", "shipping", "did you mean 'billing/shipping'?"),
        ("order-managment", "shipping", "did you mean 'order-management/shipping'?"),
        ("order-managment", "shiping", "did you mean 'order-management/shipping'?"),
        (None, "invoics", "'*/invoics': did you mean 'default/invoices'?"),
        ("biling", None, "'biling/*': did you mean 'billing/*'?"),
        (
            "q",
            "xyz",
            "; there is billing/shipping, default/emails, default/invoices, order-management/emails, ",
        ),
        ("nowhere", None, "'nowhere/*'; there is billing/shipping"),
    ],
)
def test_which_is_meant(group: str | None, name: str | None, words: str) -> None:
    assert words in str(unknown_subscription(group, name, KNOWN))


def test_none_is_like_it() -> None:
    assert str(unknown_subscription("a", "b", [])) == "there is no subscription 'a/b'; there is none at all"
    assert str(unknown_subscription("a", "b", KNOWN, otherwise=": create it")).endswith("'a/b': create it")
    many = [("default", f"s{number:02}") for number in range(15)]
    assert str(unknown_subscription("a", "xyz", many)).endswith("default/s09 and 5 more")
