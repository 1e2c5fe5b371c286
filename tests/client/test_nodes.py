"""Addresses of nodes, and the order in which they are asked."""

import pytest

import milepost
from milepost.client.nodes import NodeAddress, NodeList, api_path


@pytest.mark.parametrize(
    ("url", "http", "socket"),
    [
        ("http://localhost:8480", "http://localhost:8480/v1/head", "ws://localhost:8480/v1/head"),
        ("https://a.example/milepost/", "https://a.example/milepost/v1/head", "wss://a.example/milepost/v1/head"),
        ("http://[::1]:8480", "http://[::1]:8480/v1/head", "ws://[::1]:8480/v1/head"),
    ],
)
def test_where_requests_go(url: str, http: str, socket: str) -> None:
    node = NodeAddress.of(url)
    assert (node.http(api_path("head")), node.websocket(api_path("head"))) == (http, socket)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8480",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host/?a=b",
        "http://host/#a",
        7,
        None,
    ],
)
def test_what_is_no_address(url: object) -> None:
    with pytest.raises(ValueError, match="such as https://host:8480"):
        milepost.connect([url])  # type: ignore[list-item]


def test_a_secret_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="token") as raised:
        milepost.connect("http://me:secret@host:8480")
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="such as") as raised:
        milepost.connect("ftp://me:secret@host:8480")
    assert "secret" not in str(raised.value)


def test_names_in_a_path_are_encoded() -> None:
    assert api_path("streams", "a/b?c#d %", "..", ".") == "/v1/streams/a%2Fb%3Fc%23d%20%25/%2E%2E/%2E"


def test_who_answered_comes_first_and_who_failed_last() -> None:
    nodes = NodeList(["http://a", "http://b", "http://c", "http://a/"])
    a, b, c = nodes.in_turn()
    nodes.fails(a)
    assert nodes.in_turn() == [b, c, a]
    nodes.works(c)
    assert nodes.in_turn() == [c, b, a]
    nodes.works(a)
    assert nodes.in_turn() == [a, c, b]


def test_a_client_follows_only_to_hosts_that_it_was_given() -> None:
    """It sends its token there: a node names addresses, and does not decide who is trusted with it."""
    nodes = NodeList(["https://a.example:8480"], ["*.Internal", "10.0.0.7", "[::2]", "b"])
    for url in (
        "https://A.example:1",
        "https://c.internal/x",
        "https://10.0.0.7:8480",
        "https://[::2]",
        "https://b",
    ):
        assert nodes.may_follow(url) == NodeAddress.of(url), url
    for url in (
        "https://evil",
        "https://c.d.internal",
        "https://internal",
        "https://a.example.evil",
        "https://localhost",
    ):
        assert nodes.may_follow(url) is None, url
    assert NodeList(["http://localhost:1"]).may_follow("http://127.0.0.1:2") == NodeAddress("http://127.0.0.1:2")


@pytest.mark.parametrize("host", ["", "a:80", "http://a", "*", "*.", "a.*", "a/b", "me@a", "ä", 7])
def test_what_is_no_host_to_trust(host: object) -> None:
    with pytest.raises(ValueError, match=r"trust: hosts such as"):
        milepost.connect("http://localhost", trust=[host])  # type: ignore[list-item]


def test_nobody_is_followed_to_where_nothing_is_encrypted() -> None:
    nodes = NodeList(["https://a"], ["b"])
    assert nodes.may_follow("http://b") is None
    assert nodes.may_follow("https://b") == NodeAddress("https://b")
    assert nodes.may_follow("javascript:alert(1)") is None
    assert NodeList(["http://a"], ["b"]).may_follow("http://b") == NodeAddress("http://b")


def test_a_token_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    client = milepost.connect("http://elsewhere.example:8480", token="mp_secret")
    assert "secret" not in f"{client!r} {client} {client.sync!r} {caplog.text}"
    assert "in clear text" in caplog.text
    with pytest.raises(ValueError, match="one word") as raised:
        milepost.connect("http://localhost", token="mp_secret\r\nx: y")
    assert "secret" not in str(raised.value)
