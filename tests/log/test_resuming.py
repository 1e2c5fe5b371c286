"""Resume tokens: what they remember, what they are read as."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from milepost import Milepost, NewMessage
from milepost.log.codec import Codec
from milepost.log.message import Message
from milepost.log.resume import MAX_MARKS, ResumeFinder, ResumeMark, ResumeTrail, parse_resume_token

HIGHEST = 2**63 - 1


def a_message(position: int, life: int = 0) -> Message[None]:
    time = life.to_bytes(8, "big")
    return Message(position, "a-1", 1, position.to_bytes(16, "big"), "a", time, 0, "null", "{}", "{}", Codec(1))


def tokens(trail: ResumeTrail, positions: Iterable[int], life: int = 0) -> list[str]:
    return [trail.add_message(a_message(position, life)) for position in positions]


def positions(token: str) -> list[int]:
    marks = parse_resume_token(token, highest=HIGHEST)
    assert isinstance(marks, list)
    return [mark.position for mark in marks]


class TestTrail:
    def test_it_begins_with_the_message_and_is_dense_there(self) -> None:
        trail = ResumeTrail()
        for position, token in enumerate(tokens(trail, range(1, 100_000)), 1):
            if position % 997 == 0 or position < 40:
                found = positions(token)
                assert found[0] == position
                assert found == sorted(set(found), reverse=True)
                assert len(found) <= 8
                assert len(found) == 1 or found[1] >= position - 8
                # Whatever is lost, a mark is left that is not much further back than 70 times as much.
                distances = [position - mark for mark in found[1:]]
                assert all(b <= 70 * a for a, b in pairwise(distances))

    def test_it_is_bounded_over_all_positions(self) -> None:
        trail = ResumeTrail()
        step = 1
        last = 0
        while last + step <= HIGHEST:
            last += step
            [token] = tokens(trail, [last])
            step = step * 3 // 2 + 1
        assert len(positions(token)) <= 23 < MAX_MARKS
        assert len(token) < 700

    def test_what_is_lost_is_dropped(self) -> None:
        trail = ResumeTrail()
        lost = tokens(trail, range(1, 101))[-1]
        token = tokens(trail, [50], life=1)[0]
        assert positions(token)[0] == 50
        assert max(positions(token)[1:]) < 50
        assert positions(lost)[0] == 100

    def test_the_newest_mark_stays(self) -> None:
        """A token has the last message and a mark that is close to it: the last one counts."""
        trail = ResumeTrail()
        trail.extend([ResumeMark(59, 1), ResumeMark(60, 2), ResumeMark(44, 3)])
        assert (trail.newest, str(trail)) == (60, "60-00000002.59-00000001.44-00000003")
        assert str(ResumeTrail()) == "0"

    def test_a_message_that_is_appended_again_has_another_mark(self) -> None:
        before, again = ResumeTrail().add_message(a_message(7)), ResumeTrail().add_message(a_message(7, life=1))
        assert before != again


class TestParsing:
    @pytest.mark.parametrize("text", ["0", "7", "9223372036854775807"])
    def test_a_position(self, text: str) -> None:
        assert parse_resume_token(text, highest=HIGHEST) == int(text)

    def test_marks(self) -> None:
        assert parse_resume_token("12-000000ff.3-00000001", highest=HIGHEST) == [
            ResumeMark(12, 255),
            ResumeMark(3, 1),
        ]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "-1",
            "7-",
            "7-1",
            "7-0000000g",
            "7-0000000A",
            "7-000000000",
            "7-00000000.",
            "7-00000000.6",
            "7.6",
            "7-00000000,6-00000000",
            "7-00000000 ",
            "7-00000000\n",
            "9223372036854775808",
            "7-00000000.9223372036854775808-00000000",
            "\uff17",
            "1_000",
            ".".join(["7-00000000"] * (MAX_MARKS + 1)),
        ],
    )
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(ValueError, match="position|token"):
            parse_resume_token(text, highest=HIGHEST)


async def test_marks_of_the_log(mp: Milepost) -> None:
    await mp.append("order-1", [NewMessage("a")] * 300)
    messages = [message async for message in mp.read()]
    resuming = ResumeFinder(mp.log)
    marks = await resuming.marks_up_to(300)
    assert [mark.position for mark in marks] == [300, 296, 268, 44]
    trail = ResumeTrail()
    assert trail.add_message(messages[299]) == str(marks[0])
    assert sorted(await resuming.surviving([*marks, ResumeMark(299, 0), ResumeMark(HIGHEST, 0)])) == sorted(marks)
    assert await resuming.marks_up_to(0) == []
    assert (await resuming.horizon(), await resuming.drawn()) == (300, 300)
