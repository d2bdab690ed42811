"""Operations as steps: made by the caller who waits, or by the threads that commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from txmq.errors import ClosedError
from txmq.producer.group_commit import Answered, GroupCommitter, Size
from txmq.producer.pipeline import SendRoom, StepFutures, Steps, waited

TIMEOUT_S = 30
MAX_BYTES = 100


class Journal:
    """What an operation went through."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def group() -> Iterator[GroupCommitter[int, int]]:
    """Answers with the negative number; 13 is refused."""

    def commit(items: list[int]) -> list[int]:
        if 13 in items:
            problem = "unlucky"
            raise OSError(problem)
        return [-item for item in items]

    group: GroupCommitter[int, int] = GroupCommitter(commit, name="commits", max_rows=1)
    yield group
    group.close()


@pytest.fixture
def room() -> SendRoom:
    return SendRoom(MAX_BYTES)


@pytest.fixture
def futures(room: SendRoom) -> Iterator[StepFutures]:
    futures = StepFutures(room, lambda: None)
    yield futures
    futures.close()


def submitted(group: GroupCommitter[int, int], item: int, answered: Answered[int]) -> None:
    group.submit_to(answered, item, Size(1))


def doubled(group: GroupCommitter[int, int], journal: Journal, *items: int) -> Steps[list[int]]:
    journal.note("begins")
    answers = []
    try:
        for item in items:
            answers.append((yield partial(submitted, group, item)))
            journal.note(str(item))
    except BaseException as error:
        journal.note(type(error).__name__)
        raise
    return answers


def test_who_waits_makes_all_steps(group: GroupCommitter[int, int], journal: Journal) -> None:
    assert waited(doubled(group, journal, 1, 2)) == [-1, -2]
    assert journal.lines == ["begins", "1", "2"]
    assert set(journal.threads) == {threading.current_thread().name}


def test_future_is_made_by_the_threads_that_commit(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    future = futures.of(doubled(group, journal, 1, 2), 40)

    assert future.result(TIMEOUT_S) == [-1, -2]
    assert journal.lines == ["begins", "1", "2"]
    assert journal.threads == [threading.current_thread().name, "commits", "commits"]
    assert room.taken_bytes == 0


def test_steps_without_a_commit_are_over_at_once(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures
) -> None:
    assert waited(doubled(group, journal)) == []
    assert futures.of(doubled(group, journal)).done()


def test_error_of_a_commit_is_raised_in_the_steps(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    with pytest.raises(OSError, match="unlucky"):
        waited(doubled(group, journal, 13))
    with pytest.raises(OSError, match="unlucky"):
        futures.of(doubled(group, journal, 1, 13), 40).result(TIMEOUT_S)

    assert journal.lines == ["begins", "OSError", "begins", "1", "OSError"]
    assert room.taken_bytes == 0


def tolerant(group: GroupCommitter[int, int]) -> Steps[str]:
    try:
        yield partial(submitted, group, 13)
    except OSError:
        yield partial(submitted, group, 1)
    return "in the end"


def test_steps_may_go_on_after_an_error(
    group: GroupCommitter[int, int], futures: StepFutures
) -> None:
    assert waited(tolerant(group)) == "in the end"
    assert futures.of(tolerant(group)).result(TIMEOUT_S) == "in the end"


def test_step_that_cannot_be_submitted_is_told_at_once(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    group.close()

    with pytest.raises(ClosedError):
        waited(doubled(group, journal, 1))
    with pytest.raises(ClosedError):
        futures.of(doubled(group, journal, 1), 40)

    assert journal.lines == ["begins", "ClosedError"] * 2
    assert room.taken_bytes == 0


def interrupted(
    group: GroupCommitter[int, int], is_answered: threading.Event, answered: Answered[int]
) -> None:
    """Ctrl-C right after the item was queued, before or after it is answered."""
    submitted(group, 1, answered)
    assert is_answered.wait(TIMEOUT_S)
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_answered", [False, True])
def test_interrupt_after_an_item_was_queued_ends_its_operation_once(
    group: GroupCommitter[int, int],
    journal: Journal,
    futures: StepFutures,
    room: SendRoom,
    *,
    is_answered: bool,
) -> None:
    may_raise = threading.Event()
    if not is_answered:
        may_raise.set()

    def steps() -> Steps[None]:
        try:
            yield partial(interrupted, group, may_raise)
        finally:
            journal.note("over")
            may_raise.set()

    with pytest.raises(KeyboardInterrupt):
        futures.of(steps(), 40)
    # The committing thread has answered all that was queued, and lives.
    assert waited(doubled(group, journal, 2)) == [-2]

    assert journal.lines == ["over", "begins", "2"]
    assert room.taken_bytes == 0


def test_interrupt_of_who_waits_ends_the_steps(journal: Journal) -> None:
    def steps() -> Steps[None]:
        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        try:
            yield interrupt
        except KeyboardInterrupt:
            journal.note("told")
            raise

    with pytest.raises(KeyboardInterrupt):
        waited(steps())
    assert journal.lines == ["told"]


def test_event_loop_without_room_lets_a_thread_make_the_steps(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    room.enter(MAX_BYTES)

    async def story() -> Any:
        return await asyncio.wrap_future(futures.of(doubled(group, journal, 1), 40))

    assert asyncio.run(story()) == [-1]
    assert all(name.startswith("txmq-step") for name in journal.threads)
    assert room.taken_bytes == MAX_BYTES
