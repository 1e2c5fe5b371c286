"""`milepost filter`: status 0 is a match, 1 is none, 2 is an error."""

import pytest

from cli.program import Run

LARGE = 'amount >= 100 && region == "EU"'


def test_a_filter_that_is_right_is_printed_in_its_canonical_form(run: Run) -> None:
    assert run("filter", '(amount>=100)and region="EU"').done().out == LARGE + "\n"
    assert run("filter", "-", stdin=LARGE.encode()).done().out == LARGE + "\n"
    assert run("filter", LARGE, "--json").done().json == {"canonical": LARGE, "properties": ["amount", "region"]}


def test_a_match_and_none(run: Run) -> None:
    outcome = run("filter", LARGE, "--properties", '{"amount": 120, "region": "EU"}')
    assert (outcome.status, outcome.out) == (0, "match\n")
    outcome = run("filter", LARGE, "--properties", '{"amount": 20}')
    assert (outcome.status, outcome.out, outcome.err) == (1, "no match\n", "")


def test_explain_shows_each_part(run: Run) -> None:
    outcome = run("filter", LARGE, "--properties", '{"amount": 120, "region": "US"}', "--explain")
    assert outcome.status == 1
    for part in ("amount >= 100", 'region == "EU"', "120", '"US"', "no match"):
        assert part in outcome.out
    as_json = run("filter", LARGE, "--properties", '{"amount": 120, "region": "US"}', "--json")
    assert as_json.json["matches"] is False
    assert as_json.status == 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["amount >"], "syntax"),
        (['1 == "a"'], "type"),
        (["region == EU", "--properties", '{"region": "EU"}'], "name"),
        (["amount / 0 == 1", "--properties", '{"amount": 1}'], "arithmetic"),
    ],
)
def test_an_error_shows_the_place(run: Run, words: list[str], kind: str) -> None:
    outcome = run("filter", *words)
    assert outcome.status == 2
    assert "^" in outcome.err
    assert run("filter", *words, "--json").lines[-1]["error"]["kind"] == kind


def test_a_name_that_was_meant_as_a_text(run: Run) -> None:
    assert 'did you mean "EU"?' in run("filter", "region == EU", "--properties", '{"region": "EU"}').err


@pytest.mark.parametrize("properties", ["", "[]", "{", '{"a": 1.5}', '{"a b": 1}', '{"a": null}', "\udcff"])
def test_properties_that_no_message_has(run: Run, properties: str) -> None:
    run("filter", "a == 1", "--properties", properties).refused("--properties")


def test_explain_without_properties(run: Run) -> None:
    run("filter", "a == 1", "--explain").refused("--properties")
