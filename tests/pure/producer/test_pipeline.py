"""Operations as steps: made by the caller who waits, or by the threads that commit."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.kit.kills import interrupted_at
from txmq.errors import ClosedError
from txmq.ground import tasks
from txmq.producer import group_commit, pipeline
from txmq.producer.group_commit import Answered, GroupCommitter, Size
from txmq.producer.pipeline import (
    STEP_THREADS,
    SendFuture,
    SendRoom,
    StepFutures,
    Steps,
    waited,
)

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


@pytest.mark.parametrize("name", ["Awaited", "_Stage"])
def test_interrupt_between_two_steps_ends_them_before_the_caller_goes_on(
    group: GroupCommitter[int, int],
    journal: Journal,
    futures: StepFutures,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    steps = doubled(group, journal, 1)
    monkeypatch.setattr(pipeline, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        waited(steps) if name == "Awaited" else futures.of(steps, 40)

    assert journal.lines == ["begins", "GeneratorExit"]


def test_work_that_waits_for_a_thread_cannot_be_cancelled(
    journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    go_on = threading.Event()
    busy = [futures.in_thread(partial(go_on.wait, TIMEOUT_S)) for _ in range(STEP_THREADS)]
    future = futures.in_thread(partial(journal.note, "done"), 40)

    is_cancelled = future.cancel()
    go_on.set()
    for other in busy:
        other.result(TIMEOUT_S)
    future.result(TIMEOUT_S)

    assert not is_cancelled
    assert journal.lines == ["done"]
    assert room.taken_bytes == 0


def test_interrupt_after_work_was_done_in_a_thread_gives_its_room_back_once(
    futures: StepFutures, room: SendRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        tasks.submitted(*arguments).result(TIMEOUT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "submitted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        futures.in_thread(lambda: None, 40)

    assert room.taken_bytes == 0


def test_error_of_work_in_a_thread_is_that_of_its_future(
    futures: StepFutures, room: SendRoom
) -> None:
    def breaking() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        futures.in_thread(breaking, 40).result(TIMEOUT_S)
    assert room.taken_bytes == 0


@pytest.mark.parametrize("size_bytes", [0, 40])
def test_forked_process_asks_for_no_room(
    room: SendRoom, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    def refuse(*_: object) -> None:
        problem = "of another process"
        raise ClosedError(problem)

    def steps() -> Steps[None]:
        yield refuse

    futures = StepFutures(room, refuse)
    # Nobody lets it go, as after a fork.
    monkeypatch.setattr(room, "_lock", None)
    with pytest.raises(ClosedError):
        futures.of(steps(), size_bytes)


def test_event_loop_without_room_lets_a_thread_make_the_steps(
    group: GroupCommitter[int, int], journal: Journal, futures: StepFutures, room: SendRoom
) -> None:
    room.enter(MAX_BYTES, SendFuture())

    async def story() -> Any:
        return await asyncio.wrap_future(futures.of(doubled(group, journal, 1), 40))

    assert asyncio.run(story()) == [-1]
    assert all(name.startswith("txmq-step") for name in journal.threads)
    assert room.taken_bytes == MAX_BYTES


# --- interrupts -----------------------------------------------------------------------------------
STEPS_OF = (pipeline.__file__, group_commit.__file__, threading.__file__)


@pytest.mark.parametrize("waits", ["for room", "for its answer", "for its future"])
def test_an_interrupt_at_any_step_of_a_call_stops_nobody_else(
    group: GroupCommitter[int, int],
    journal: Journal,
    futures: StepFutures,
    room: SendRoom,
    waits: str,
) -> None:
    taken = SendFuture()

    def call() -> None:
        if waits == "for its answer":
            waited(doubled(group, journal, 1))
        else:
            futures.of(doubled(group, journal, 1), MAX_BYTES).result(TIMEOUT_S)

    def other_call() -> list[int]:
        answer: list[int] = futures.of(doubled(group, journal, 2), MAX_BYTES).result(TIMEOUT_S)
        return answer

    def leave(is_over: threading.Event) -> None:
        while not (room._outside or is_over.is_set()):
            is_over.wait(0.001)
        room.leave(taken)

    with ThreadPoolExecutor(1) as pool:
        for place in itertools.count():
            is_over = threading.Event()
            if waits == "for room":
                room.enter(MAX_BYTES, taken)
                pool.submit(leave, is_over)
            was_interrupted = interrupted_at(place, call, STEPS_OF)
            is_over.set()
            assert pool.submit(other_call).result(2 * TIMEOUT_S) == [-2]
            if not was_interrupted:
                break
    assert place > 20
    assert room.taken_bytes == 0
