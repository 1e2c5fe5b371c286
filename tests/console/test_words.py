"""Numbers, times and foreign text, and what is drawn of them."""

from datetime import UTC, datetime, timedelta

import pytest

from milepost.console.charts import sparkline
from milepost.console.live import LiveRegions, changed_regions
from milepost.console.request import Flash, read_flash
from milepost.console.templating import ago, duration, rate, visible


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.04, "40 ms"),
        (1.26, "1.3 s"),
        (59, "59 s"),
        (61, "1 m 1 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_rates() -> None:
    assert [rate(value) for value in (0, 0.01, 0.5, 9.94, 12_345.6)] == ["0", "<0.1", "0.5", "9.9", "12,346"]


def test_a_time_has_the_exact_one_beside_it() -> None:
    moment = datetime.now(UTC) - timedelta(seconds=3)
    assert f'title="{moment:%Y-%m-%d %H:%M:%S}' in ago(moment)
    assert "3 s ago" in ago(moment)
    assert "in 1 m" in ago(datetime.now(UTC) + timedelta(seconds=60.5))


@pytest.mark.parametrize("hidden", ["\0", "\x1b", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\x85"])
def test_what_cannot_be_seen_is_spelled_out(hidden: str) -> None:
    assert visible(f"a{hidden}b") == f"a\\u{ord(hidden):04x}b"


def test_what_can_be_seen_stays() -> None:
    assert visible("Ünïcödé 漢字 😀\n\t字") == "Ünïcödé 漢字 😀\n\t字"
    assert visible(None) == ""


def test_a_region_that_only_grew_older_has_not_changed() -> None:
    older, newer = '<time datetime="x">3 s ago</time> 1', '<time datetime="x">4 s ago</time> 1'
    assert changed_regions({"a": older, "b": "1"}, {"a": newer, "b": "2"}) == {"b": "2"}
    assert changed_regions({"a": older}, {"a": newer.replace(" 1", " 2")}) != {}


def test_a_region_escapes_its_id_and_attributes() -> None:
    html = LiveRegions()('"><script>', class_='a"b', caller=lambda: "text")  # type: ignore[arg-type, return-value]
    assert "<script>" not in html
    assert 'class="a&#34;b"' in html


def test_a_line_that_does_not_change_is_drawn_alike() -> None:
    assert sparkline([(0, 5), (1, 5)], "lag") == sparkline([(at, 5) for at in range(100)], "lag")
    assert sparkline([], "lag") == sparkline([(0, 0)], "lag")
    assert "<" not in sparkline([(0, 1)], "<b>").split("aria-label=")[1].split(">")[0]


def test_a_word_on_what_was_done_survives_its_cookie() -> None:
    flash = Flash("3 messages are tried again: <b>\n\u202e", "problem")
    assert read_flash(flash.encoded()) == flash
    assert len(Flash("x" * 100_000).encoded()) < 4000
    for wrong in ("", None, "%%%", "e30", "bnVsbA=="):
        assert read_flash(wrong) is None
