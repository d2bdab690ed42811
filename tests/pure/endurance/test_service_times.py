"""What the story of consumer groups would say of members that do what they must not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.endurance.groups.crew import Deed, Event
from tests.endurance.groups.journal import Call, CallEnd, Journal, calls_of
from tests.endurance.groups.service_times import (
    Interruptions,
    by_queue,
    disordered,
    handed_again,
    together,
)
from tests.endurance.groups.world import Delivery

CALM = Interruptions([])


def call(
    member: str, offset: int, begin_s: float, end_s: float | None, end: CallEnd = CallEnd.DONE
) -> Call:
    ended = None if end_s is None else end
    return Call(member, "orders", 0, offset, f"id-{offset}", begin_s, end_s, ended)


def stop_of(member: str, begin_s: float, end_s: float) -> Interruptions:
    return Interruptions([Event(Deed.STOP, member, begin_s, end_s)])


def kill_of(member: str, at_s: float) -> Interruptions:
    return Interruptions([Event(Deed.KILL, member, at_s, at_s)])


def test_queue_that_two_members_serve_at_the_same_moment_is_found() -> None:
    calls = [call("one", 4, 1.0, 1.3), call("two", 5, 1.2, 1.4)]

    assert len(together(calls, CALM)) == 1
    assert together([calls[0], call("two", 5, 1.3, 1.4)], CALM) == []


def test_call_of_a_member_ends_when_it_is_stopped_or_dies() -> None:
    calls = [call("one", 4, 1.0, 9.0), call("two", 4, 5.0, 5.1)]
    killed = [call("one", 4, 1.0, None), call("two", 4, 5.0, 5.1)]

    assert together(calls, stop_of("one", 1.5, 8.0)) == []
    assert together(killed, kill_of("one", 1.5)) == []
    assert len(together(killed, CALM)) == 1


def test_call_that_begins_while_its_member_is_killed_ends_with_it() -> None:
    killed = Interruptions([Event(Deed.KILL, "one", 0.9, 1.2)])
    calls = [call("one", 4, 1.0, None), call("two", 4, 5.0, 5.1)]

    assert together(calls, killed) == []
    assert len(together([call("one", 4, 1.3, None), calls[1]], killed)) == 1


def test_member_that_goes_on_with_a_queue_that_it_has_lost_is_found() -> None:
    stopped = stop_of("one", 1.5, 8.0)
    calls = [
        call("one", 4, 1.0, 8.1), call("two", 4, 5.0, 5.1), call("two", 5, 5.1, 5.2),
        call("one", 5, 8.1, 8.2), call("two", 6, 8.3, 8.4),
    ]  # fmt: skip

    count, unexplained = handed_again(calls, stopped)

    assert count == 2
    assert unexplained == ["orders/0/5 by one after 5 by two"]


def test_queue_goes_back_only_after_a_kill_a_stop_or_a_batch_that_failed() -> None:
    back = [call("one", 7, 1.0, 1.1), call("two", 5, 2.0, 2.1)]
    halves = [call("a-spark", 7, 1.0, 1.1, CallEnd.FAILED), call("a-spark", 5, 2.0, 2.1)]

    assert len(handed_again(back, CALM)[1]) == 1
    assert handed_again(back, kill_of("one", 1.5)) == (1, [])
    assert len(handed_again(back, kill_of("one", 2.5))[1]) == 1
    assert handed_again(halves, CALM) == (1, [])


def test_message_that_is_first_handed_out_after_a_later_one_is_found() -> None:
    calls = [call("one", 1, 1.0, 1.1), call("one", 3, 1.1, 1.2), call("two", 2, 1.2, 1.3)]

    assert disordered(calls) == ["orders/0/2 after 3, by two"]
    assert disordered([*calls[:2], call("two", 1, 1.2, 1.3)]) == []


def test_journal_gives_back_what_a_member_was_given_and_half_a_line_is_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "billing-1-pull.journal"
    first, second = (
        Delivery("orders", 0, offset, f"id-{offset}", f"id-{offset}", 0, is_poison=False)
        for offset in (3, 4)
    )
    with closing(Journal(path)) as journal:
        journal.begin([first], 1.0)
        journal.end([first], CallEnd.LATE)
        journal.begin([second], 2.0)
    with path.open("a", encoding="utf-8") as torn:
        torn.write("3.0 done ord")

    calls = by_queue(calls_of(path))["orders", 0]

    assert [(own.member, own.offset, own.origin, own.end) for own in calls] == [
        ("billing-1-pull", 3, "id-3", CallEnd.LATE), ("billing-1-pull", 4, "id-4", None)
    ]  # fmt: skip
