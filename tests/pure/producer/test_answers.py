"""Threads that wait for a shared commit wake each other; nobody is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from txmq.producer import group_commit
from txmq.producer.group_commit import Awaited, GroupCommitter, Size, Woken

TIMEOUT_S = 30


def submit(group: GroupCommitter[int, int], item: int) -> Awaited[int]:
    """Queue an item, for a caller who waits."""
    awaited: Awaited[int] = Awaited()
    group.submit_to(awaited, item, Size(1))
    return awaited


class Gate:
    """Commits wait here."""

    def __init__(self) -> None:
        self.is_entered, self.is_open = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def commit(self, items: list[int]) -> Sequence[int]:
        self.is_entered.set()
        assert self.is_open.wait(TIMEOUT_S)
        self.sizes.append(len(items))
        return [-item for item in items]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def group(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCommitter[int, int]]:
    """One thread is awake at a time."""
    monkeypatch.setattr(group_commit, "AWAKE_AT_ONCE", 1)
    group: GroupCommitter[int, int] = GroupCommitter(gate.commit, name="test", max_rows=1_000)
    yield group
    group.close()


def test_each_thread_wakes_the_next_one() -> None:
    woken = Woken()
    waiting: list[Awaited[int]] = [Awaited() for _ in range(3)]
    for number, awaited in enumerate(waiting):
        awaited.set_result_in_turn(number, woken)
    assert all(awaited.done() for awaited in waiting)
    with pytest.raises(TimeoutError):
        waiting[0].result(0.0)

    woken.wake(1)

    assert [awaited.result(TIMEOUT_S) for awaited in waiting] == [0, 1, 2]
    assert not woken


def test_all_of_many_threads_are_woken(gate: Gate, group: GroupCommitter[int, int]) -> None:
    gate.is_open.set()

    def call(number: int) -> list[int]:
        return [submit(group, item).result(TIMEOUT_S) for item in range(number, 500, 50)]

    with ThreadPoolExecutor(50) as pool:
        answers = [answer for own in pool.map(call, range(50)) for answer in own]

    assert sorted(answers) == sorted(-number for number in range(500))


def test_who_gives_up_keeps_nobody_asleep(gate: Gate, group: GroupCommitter[int, int]) -> None:
    first = submit(group, 1)
    assert gate.is_entered.wait(TIMEOUT_S)
    lost, others = submit(group, 2), [submit(group, n) for n in range(3, 6)]
    with pytest.raises(TimeoutError):
        lost.result(0.0)

    gate.is_open.set()

    assert first.result(TIMEOUT_S) == -1
    # Nobody waits for the second answer, and no later call brings another commit.
    assert [awaited.result(TIMEOUT_S) for awaited in others] == [-3, -4, -5]
    assert lost.result(TIMEOUT_S) == -2


def test_threads_that_sleep_while_it_breaks_have_their_answers(
    gate: Gate, group: GroupCommitter[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit(group, 1)
    assert gate.is_entered.wait(TIMEOUT_S)
    # They share the second commit.
    others = [submit(group, number) for number in range(2, 6)]

    def broken() -> None:
        raise SystemExit

    monkeypatch.setattr(group, "_gather", broken)
    monkeypatch.setattr(group, "_sleep", lambda: None)
    gate.is_open.set()

    assert first.result(TIMEOUT_S) == -1
    assert [awaited.result(TIMEOUT_S) for awaited in reversed(others)] == [-5, -4, -3, -2]
