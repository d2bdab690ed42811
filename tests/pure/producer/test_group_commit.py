"""Many threads, one committing thread: nothing is lost, doubled or waited for for ever."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from txmq.errors import ClosedError
from txmq.producer.group_commit import Awaited, GroupCommitter, Size, Woken

THREADS = 8


def submit(group: GroupCommitter[int, int], item: int) -> Awaited[int]:
    """Queue an item, for a caller who waits."""
    awaited: Awaited[int] = Awaited()
    group.submit_to(awaited, item, Size(1))
    return awaited


class Log:
    """What was committed, in which pieces."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.commits: list[list[int]] = []
        self.pause_s = pause_s

    def commit(self, items: list[int]) -> Sequence[int]:
        if self.pause_s:
            time.sleep(self.pause_s)
        self.commits.append(items)
        return [-item for item in items]

    @property
    def items(self) -> list[int]:
        return sorted(item for commit in self.commits for item in commit)


def committer(log: Log, **options: float) -> GroupCommitter[int, int]:
    limits = {"max_rows": 100, **options}
    return GroupCommitter(log.commit, name="test", **limits)  # type: ignore[arg-type]


def refusing() -> tuple[GroupCommitter[int, int], list[int]]:
    """One that answers with the items, and what it refused."""
    refused: list[int] = []
    return GroupCommitter(
        list, name="test", max_rows=10, refuse=lambda item, _: refused.append(item)
    ), refused


def test_each_item_of_many_threads_has_its_own_answer() -> None:
    log = Log()
    group = committer(log)

    def send(thread: int) -> list[tuple[int, int]]:
        numbers = range(thread * 1000, thread * 1000 + 1000)
        futures = [(number, submit(group, number)) for number in numbers]
        return [(number, future.result(30)) for number, future in futures]

    with ThreadPoolExecutor(THREADS) as pool:
        found = [pair for own in pool.map(send, range(THREADS)) for pair in own]
    group.close()

    assert all(answer == -number for number, answer in found)
    assert log.items == list(range(THREADS * 1000))


@pytest.mark.parametrize("attempt", range(20))
def test_who_sends_while_it_is_closed_is_answered_or_told(attempt: int) -> None:
    log = Log()
    group = committer(log, linger_s=0.001)
    begin = threading.Barrier(THREADS + 1)
    taken: list[Awaited[int]] = []
    refused: list[int] = []

    def send(thread: int) -> None:
        begin.wait()
        for number in range(thread * 1000, thread * 1000 + 500):
            try:
                taken.append(submit(group, number))
            except ClosedError:
                refused.append(number)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    begin.wait()
    time.sleep(attempt * 0.0005)
    group.close()
    for thread in threads:
        thread.join()

    answers = sorted(-future.result(5) for future in taken)
    assert answers == log.items
    assert len(answers) + len(refused) == THREADS * 500


def test_callers_wait_where_there_is_no_room() -> None:
    log = Log(pause_s=0.002)
    group = committer(log, max_waiting=5, max_rows=2)
    most = 0
    futures = []
    for number in range(60):
        futures.append(submit(group, number))
        most = max(most, len(group._waiting))
    group.close()

    assert [future.result(5) for future in futures] == [-number for number in range(60)]
    assert most <= 5


def test_commit_is_no_larger_than_allowed_but_for_one_large_item() -> None:
    log = Log(pause_s=0.005)
    group = committer(log, max_rows=10)
    sizes = [4, 4, 4, 50, 1, 1]
    for number, size in enumerate(sizes):
        group.put(number, Size(size))
    group.close()

    assert log.items == list(range(len(sizes)))
    for commit in log.commits:
        assert len(commit) == 1 or sum(sizes[item] for item in commit) <= 10


def test_single_caller_of_one_without_linger_waits_for_nobody() -> None:
    log = Log()
    group = committer(log)
    for number in range(100):
        assert submit(group, number).result(5) == -number
    group.close()

    assert log.commits == [[number] for number in range(100)]


def test_error_of_a_commit_reaches_each_caller_and_the_next_commit_is_made() -> None:
    failing = [True]

    def commit(items: list[int]) -> Sequence[int]:
        if failing.pop() if failing else False:
            problem = "disk"
            raise OSError(problem)
        return items

    group: GroupCommitter[int, int] = GroupCommitter(commit, name="test", max_rows=10)
    with pytest.raises(OSError, match="disk"):
        submit(group, 1).result(5)
    assert submit(group, 2).result(5) == 2
    group.close()
    with pytest.raises(ClosedError):
        submit(group, 3)


def test_commit_has_no_more_bytes_than_allowed_but_for_one_large_item() -> None:
    log = Log(pause_s=0.005)
    group = committer(log, max_bytes=10)
    sizes = [4, 4, 4, 50, 1, 1]
    for number, size in enumerate(sizes):
        group.put(number, Size(1, size))
    group.close()

    assert log.items == list(range(len(sizes)))
    for commit in log.commits:
        assert len(commit) == 1 or sum(sizes[item] for item in commit) <= 10


class Panic(BaseException):
    """No Exception."""


def test_commit_that_raises_no_exception_is_told_and_the_next_commit_is_made() -> None:
    failing = [True]

    def commit(items: list[int]) -> Sequence[int]:
        if failing:
            failing.pop()
            raise Panic
        return items

    group: GroupCommitter[int, int] = GroupCommitter(commit, name="test", max_rows=10)
    with pytest.raises(Panic):
        submit(group, 1).result(5)
    assert submit(group, 2).result(5) == 2
    group.close()


def test_commit_with_too_few_answers_is_an_error_of_each_caller() -> None:
    group: GroupCommitter[int, int] = GroupCommitter(lambda _: [], name="test", max_rows=10)

    with pytest.raises(ValueError, match="shorter"):
        submit(group, 1).result(5)
    group.close()


def test_thread_that_breaks_answers_all_and_refuses_later_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, refused = refusing()

    def broken() -> None:
        raise Panic

    monkeypatch.setattr(group, "_take", broken)
    with group._lock:
        group._waiting.append((1, 1, 0, None))
    future = submit(group, 2)

    with pytest.raises(Panic):
        future.result(5)
    with pytest.raises(ClosedError, match="broke"):
        submit(group, 3)
    assert refused == [1]
    group.close()


def test_thread_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    group = committer(log)

    def no_thread(_: threading.Thread) -> None:
        problem = "can't start new thread"
        raise RuntimeError(problem)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="start new thread"):
            submit(group, 1)

    assert submit(group, 2).result(5) == -2
    group.close()
    assert log.items == [2]


def test_thread_whose_start_was_interrupted_does_not_commit_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, threads = Log(), list[threading.Thread]()
    group, start = committer(log), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        """Ctrl-C while the caller waits until the thread says that it runs."""
        start(thread)
        threads.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            submit(group, 1)

    assert submit(group, 2).result(5) == -2
    threads[0].join(5)
    assert not threads[0].is_alive()
    group.close()
    assert log.items == [2]


class Torn(deque[Any]):
    """Entries, of which the thread that takes the second one breaks right after it."""

    def popleft(self) -> Any:
        entry = super().popleft()
        if entry[0] == 2:
            raise Panic
        return entry


def test_thread_that_breaks_while_it_takes_items_answers_all_and_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, refused = refusing()
    monkeypatch.setattr(group, "_waiting", Torn())
    with group._lock:
        group._waiting.extend([(1, 1, 0, None), (2, 1, 0, None)])
    futures = [submit(group, item) for item in (3, 4)]

    for future in futures:
        with pytest.raises(Panic):
            future.result(30)
    group.close()
    assert refused == [1, 2]


class StopsWaking(Awaited[int]):
    """An answer of which the committing thread breaks before it wakes who waits."""

    def set_result_in_turn(self, answer: int, woken: Woken) -> None:  # noqa: ARG002 - its signature
        self._answer, self._is_answered = answer, True
        raise Panic


def test_thread_that_breaks_before_it_wakes_a_caller_leaves_nobody_waiting() -> None:
    group = committer(Log())
    awaited = StopsWaking()
    group.submit_to(awaited, 1, Size(1))

    assert awaited.result(30) == -1
    group.close()
