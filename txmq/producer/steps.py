"""The steps of a transaction without a thread that waits: each gives a future.

A step that only needs shared commits is done when its commit is. One that has to read or to compute
first, such as a DataFrame, runs in one of a few threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock, get_ident
from typing import Any

from txmq.ground.tasks import submitted
from txmq.producer.asynchronous import SendRoom
from txmq.producer.body_check import Refused
from txmq.producer.commits import ProducerCommits, half_size
from txmq.producer.contexts import AskedEnd, Sending
from txmq.producer.ends import AskedEnds
from txmq.producer.group_commit import Size
from txmq.producer.routing import PlannedSend, RoutedMessage
from txmq.store.logs import Resolution

logger = logging.getLogger(__name__)

STEP_THREADS = 4
# Gets the error of a step, or None, before its future is done: whoever waits may go on at once.
Done = Callable[[BaseException | None], None]


class StepFutures:
    """Makes the steps of one producer's transactions. Safe for many threads."""

    def __init__(self, commits: ProducerCommits) -> None:
        """Start no thread yet."""
        max_bytes = commits.store.config.back_pressure_for_async_send_size_bytes
        self._commits, self._room = commits, SendRoom(max_bytes, self._gives_room)
        self._threads: ThreadPoolExecutor | None = None
        self._lock = Lock()
        # The threads of these steps, which run callbacks too.
        self._own: set[int] = set()

    def prepare(
        self, transaction_id: str, routed: Sequence[RoutedMessage], done: Done
    ) -> Future[None]:
        """Append halves; `done` is called before the future is done.

        Where too many bytes are on their way, the caller waits; in an event loop, where nobody may
        wait, a thread does.
        """
        send = PlannedSend(transaction_id, routed)
        half = self._commits.half_of(send)
        size = half_size(send)
        if not self._enter(size.bytes):
            return self.in_thread(partial(self._prepare_waiting, send, done))
        left = partial(self._left, size, done)
        try:
            sending = self._commits.begin_send([send], ordinary=False)
        except BaseException as error:
            left(error)
            raise
        half = self._commits.carrying(half, sending)
        step = _PrepareStep(self._commits, left, sending, send)
        self._submit(step, partial(self._commits.submit_halves, [half], step, size))
        return step.future

    def prepare_in_thread(self, work: Callable[[], None], size_bytes: int) -> Future[None]:
        """As `in_thread`, for work that holds so many bytes: they take room as in `prepare`."""
        self._commits.check_open()
        if not self._enter(size_bytes):
            return self.in_thread(work)
        try:
            return self.in_thread(partial(self._leaving, work, size_bytes))
        except BaseException:
            self._room.leave(size_bytes)
            raise

    def _leaving(self, work: Callable[[], None], size_bytes: int) -> None:
        try:
            work()
        finally:
            self._room.leave(size_bytes)

    def _prepare_waiting(self, send: PlannedSend, done: Done) -> None:
        """The work of one of a few threads, so that few of them are on their way."""
        try:
            self._commits.prepare(send.transaction_id, send.routed)
        except BaseException as error:
            done(error)
            raise
        done(None)

    def _enter(self, size_bytes: int) -> bool:
        """Take room, and wait for it where the calling thread may; whether it was taken."""
        if _runs_an_event_loop():
            return self._room.try_enter(size_bytes)
        self._room.enter(size_bytes)
        return True

    def _gives_room(self) -> bool:
        """Whether room depends on the calling thread, which runs callbacks."""
        return self._commits.is_giver() or get_ident() in self._own

    def _submit(self, step: _Step, submit: Callable[[], None]) -> None:
        try:
            submit()
        except BaseException as error:
            step.set_exception(error)
            raise

    def _left(self, size: Size, done: Done, error: BaseException | None) -> None:
        self._room.leave(size.bytes)
        done(error)

    def end(self, end: AskedEnd, done: Done) -> Future[None]:
        """Claim an end and confirm it; `done` is called before the future is done."""
        step = _EndStep(self._commits, done, end)
        asked = AskedEnds([(end.transaction_id, end.kind)], end.is_doubtful, end.since)
        self._submit(step, partial(self._commits.submit_ends, asked, step, Size(1)))
        return step.future

    def in_thread(self, work: Callable[[], None]) -> Future[None]:
        """Do work that waits by itself. Raises: ClosedError."""
        self._commits.check_open()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    STEP_THREADS, "txmq-step", initializer=lambda: self._own.add(get_ident())
                )
            return submitted(self._threads, work)

    def close(self) -> None:
        """Wait for what runs in threads; call it before the commits are closed."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()


class _Step:
    """Takes the answer of a shared commit, in the thread that made it."""

    def __init__(self, commits: ProducerCommits, done: Done) -> None:
        self.future: Future[None] = Future()
        self._done = done
        # Nobody can take a commit back, so its future cannot be cancelled.
        self.future.set_running_or_notify_cancel()
        self._commits = commits

    def done(self) -> bool:
        return self.future.done()

    def set_result(self, answer: Any) -> None:
        try:
            self._take(answer)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.set_exception(error)
        else:
            self._hooked(None)
            self._done(None)
            self.future.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        self._hooked(error)
        self._done(error)
        self.future.set_exception(error)

    def _hooked(self, error: BaseException | None) -> None:
        """Tell the hooks; whatever they raise, the caller gets its answer."""
        try:
            self._tell(error)
        except BaseException:
            logger.exception("a hook of a transaction broke")

    def _take(self, answer: Any) -> None:
        """Raise the error that the answer stands for."""
        raise NotImplementedError

    def _tell(self, error: BaseException | None) -> None:
        """Tell the hooks of the answer or the error."""
        raise NotImplementedError


class _PrepareStep(_Step):
    def __init__(
        self, commits: ProducerCommits, done: Done, sending: Sending, send: PlannedSend
    ) -> None:
        super().__init__(commits, done)
        self._sending, self._transaction_id = sending, send.transaction_id

    def _take(self, refused: Refused) -> None:
        self._commits.end_changed(refused)
        if self._transaction_id in refused:
            raise refused[self._transaction_id]

    def _tell(self, error: BaseException | None) -> None:
        self._sending.done(error)


class _EndStep(_Step):
    def __init__(self, commits: ProducerCommits, done: Done, end: AskedEnd) -> None:
        super().__init__(commits, done)
        self._end, self._begun_s = end, time.monotonic()
        self._resolution: Resolution | None = None

    def _take(self, answer: Sequence[Resolution]) -> None:
        (self._resolution,) = answer
        self._resolution.confirm(self._end.transaction_id, self._end.kind)

    def _tell(self, error: BaseException | None) -> None:
        self._commits.hooks.ended(self._end, self._resolution, error, self._begun_s)


def done() -> Future[None]:
    """The future of a step that had nothing to do."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _runs_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
