"""Push the messages of a member to a handler, and commit what was handled.

While the handler has a message, another thread may give up its call: it sends the message back and
goes on with what is behind it. A lock says which of the two is first.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import TopicQueue, replay_of
from txmq.consumer.handlers import MessageHandler, RunEndedError
from txmq.consumer.send_back import FailedMessage
from txmq.consumer.taking import QueueMessage, first_handed, first_offsets
from txmq.errors import (
    ConsumerGroupConflictError,
    ConsumeTimeoutError,
    EnvironmentProblemError,
    TxmqError,
)
from txmq.ground.clock import Clock, elapsed_ms
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ground.results import Sum
from txmq.message.received import ReceivedMessage
from txmq.store.config import ConsumeSettings

logger = logging.getLogger(__name__)
PUSH_MESSAGES = 256
PUSH_POLL_S = 0.2
FAILURE_PAUSE_S = 1.0
STOP_LOOK_S = 0.05
HANGING_LOOK_S = 0.2
# RocketMQ's consumeThreadMax: with so many calls that hang, for each thread, the consumer ends.
HANGING_MAX = 20
Send = Callable[[Sequence[FailedMessage]], int]


@dataclass(frozen=True, slots=True)
class ConsumeResult(Sum):
    """How many messages a handler was given.

    Attributes:
        consumed: the messages that it was given.
        sent_back: those of them that failed and come again later.
    """

    consumed: int = 0
    sent_back: int = 0


class CallGivenUpError(Exception):
    """The handler came back after its call was given up; another thread pushes now."""


class ConsumerHandle(ThreadHandle):
    """A handler that is given messages, by so many threads, until `stop()`.

    `stop()` returns after the calls of the handler on their way: messages that were handled are
    committed (one commit), the others come again, and other threads may use the consumer.
    `is_alive` says whether a thread runs, `exception` which error ended them.

    Attributes:
        total: the messages that it was given so far.
    """

    def __init__(
        self, consumer_group: str, push: MessagePush, finish: Callable[[bool], object]
    ) -> None:
        """Have `finish` commit at the end, and leave the group after a failure."""
        self._stop_is_asked = threading.Event()
        super().__init__(f"consumer-{consumer_group}", 0.0, stopping=self._stop_is_asked)
        self._group, self._push, self._finish = consumer_group, push, finish
        # What changes when a thread comes, ends, or takes over.
        self._changing = threading.Lock()
        self._threads = {self._thread}
        self.total = ConsumeResult()
        push.go_on_by(self._go_on)

    def begin(self) -> None:
        """Start the threads. Raises: EnvironmentProblemError."""
        # Before them, for at the end of the process what began last is ended first.
        self._push.begin_watch()
        super().begin()
        for _ in range(1, self._push.threads):
            self._add_thread()

    def _add_thread(self, instead_of: threading.Thread | None = None) -> bool:
        """Start one more thread; return whether any is left, for this process may have no room."""
        thread = self._new_thread()
        with self._changing:
            # In one step: whichever of them ends must see who else is there.
            self._threads -= {instead_of}
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError as error:
                self._threads.discard(thread)
                logger.warning("group %s has a thread less: %s", self._group, error)
            return bool(self._threads)

    def stop(self) -> None:
        """Stop after the calls of the handler on their way, or after their consume timeout.

        A handler may call it: its own call is among the last ones.
        """
        self._stopping.set()
        if threading.current_thread() in self._threads:
            return
        # Another thread may take over from one that hangs.
        while running := self._running():
            running[0].join(STOP_LOOK_S)

    def stop_when(self, stopping: threading.Event) -> None:
        """Wait until `stopping` is set or the consumer has ended by itself, then `stop`."""
        while self.is_alive and not stopping.wait(HANGING_LOOK_S):
            pass
        self.stop()

    @property
    def is_alive(self) -> bool:
        """Whether a thread pushes messages."""
        return bool(self._running())

    def _is_alive_after(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while (running := self._running()) and (left_s := deadline_s - time.monotonic()) > 0:
            running[0].join(min(STOP_LOOK_S, left_s))
        return self.is_alive

    def _running(self) -> list[threading.Thread]:
        # One that takes over is alive once it has been started.
        with self._changing:
            return [thread for thread in self._threads if thread.is_alive()]

    def _go_on(self, given_up: threading.Thread, result: ConsumeResult) -> None:
        """Have another thread take over from one whose handler hangs."""
        with self._changing:
            self.total += result
            self._failure = self._failure or self._push.hangs_too_often
            if self._failure is not None:
                self._stopping.set()
        if not self._add_thread(instead_of=given_up):
            self._failure = self._failure or EnvironmentProblemError(
                "no thread could be started to take over from a handler that hangs",
                "Free some threads of this process, and start the consumer again.",
            )
            self._push.end()
            self._finish_all()

    def _turns(self) -> None:
        try:
            super()._turns()
        except BaseException as error:
            # Another thread has taken over: this one has nothing to say any more.
            if threading.current_thread() in self._threads:
                self._stopping.set()
                raise
            logger.info("group %s: a call that was given up has ended: %r", self._group, error)

    def _turn(self) -> None:
        try:
            self._push.turn(self._stop_is_asked, self._count)
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("group %s goes on after: %s", self._group, error)  # noqa: TRY400 - it says all
            self._push.pause(self._stop_is_asked)

    def _count(self, result: ConsumeResult) -> None:
        with self._changing:
            self.total += result

    def _end(self) -> None:
        """Commit, once all others have ended."""
        with self._changing:
            own = threading.current_thread()
            if own not in self._threads:
                return
            is_last = len(self._threads) == 1
            if not is_last:
                self._threads.discard(own)
        if not is_last:
            # The last one may have a call that takes long.
            with suppress(TxmqError, OSError):
                self._push.commit()
            return
        self._push.end()
        self._finish_all()

    def _finish_all(self) -> None:
        try:
            self._finish(self._failure is not None)
        except (TxmqError, OSError) as error:
            logger.warning("the last messages come again: %s", error)


class MessagePush:
    """Gives the messages of a member to one handler, by several threads at a time.

    Each thread has messages of queues that no other one has, so each queue is handled in its
    order. The reader, the batches and the calls are changed under one lock, which nobody holds
    while the handler works.

    Args:
        reader: the messages of the member.
        handler: checked already.
        clock: measures how long a call takes.
        settings: a call that takes longer than `consume_timeout_s` counts as a failure of its
            message. A queue is served `pull_batch_size` messages or `consume_turn_s` long, and
            then the next one.

    Attributes:
        threads: how many threads may call `turn`.
    """

    def __init__(
        self, reader: GroupReader, handler: MessageHandler, clock: Clock, settings: ConsumeSettings
    ) -> None:
        """Read nothing yet."""
        self._reader, self._handler, self._clock = reader, handler, clock
        self._timeout_s, self._turn_ms = settings.consume_timeout_s, settings.consume_turn_s * 1000
        self._of_a_queue = settings.pull_batch_size
        self._max_times = settings.max_reconsume_times
        self._suspend_s = settings.suspend_current_queue_time_s
        self.threads = settings.consume_threads
        self._lock, self._waiting = threading.RLock(), threading.Lock()
        # Queues of which a thread had messages may be served again.
        self._has_freed = threading.Event()
        self._batches: list[Batch] = []
        self._calls: list[_Call] = []
        self._hanging = 0
        self._given_up: Callable[[threading.Thread, ConsumeResult], object] = self._leave
        self._watch: _HangingLook | None = None

    def drain(self) -> ConsumeResult:
        """Push all that is visible, then commit; see `PullConsumer.run_once`."""
        total = ConsumeResult()
        self._reader.note_received()
        try:
            while batch := self._taken(threads=1):
                total += self._drained(batch)
            self._reader.tell_unknown()
        finally:
            # An interrupt keeps them from the handler, and the commit would pass them.
            self._reader.give_again(first_handed(self._reader.handed))
            self.end()
            self._reader.commit()
        return total

    def _drained(self, batch: Batch) -> ConsumeResult:
        try:
            self._push(batch, None)
        except CallGivenUpError:
            logger.info("a handler that took too long has come back; its message was sent back")
        return batch.result

    def turn(self, stopping: threading.Event, count: Callable[[ConsumeResult], object]) -> None:
        """Wait a moment for messages and push them, until `stopping` is set, also by the handler.

        `count` is told what became of them, also after an error.

        Raises: CallGivenUpError if another thread has taken over.
        """
        batch = self._next_batch(stopping)
        if batch is None:
            return
        try:
            self._push(batch, stopping)
        except RunEndedError:
            if batch.is_given_up:
                raise CallGivenUpError from None
            # What was handled before counts.
            stopping.set()
        finally:
            # Whoever gave the call up has counted.
            if not batch.is_given_up:
                count(batch.result)

    def pause(self, stopping: threading.Event) -> None:
        """Have no thread take messages for a moment, after an error of the store."""
        with self._waiting:
            stopping.wait(FAILURE_PAUSE_S)

    def go_on_by(self, given_up: Callable[[threading.Thread, ConsumeResult], object]) -> None:
        """Have this called after a call was given up; else the member leaves its group."""
        self._given_up = given_up

    def end(self) -> None:
        """Stop looking for calls that hang: none is under way, or will be."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    # --- taking -----------------------------------------------------------------------------

    def _next_batch(self, stopping: threading.Event) -> Batch | None:
        """Wait a moment for messages, one thread at a time; None if none came."""
        deadline_s = time.monotonic() + PUSH_POLL_S
        if not self._waiting.acquire(timeout=PUSH_POLL_S):
            return None
        try:
            batch = self._taken(self.threads)
            while batch is None and time.monotonic() < deadline_s and not stopping.is_set():
                self._has_freed.wait(self._reader.look_interval_s)
                batch = self._taken(self.threads, must_look=False)
            if batch is None:
                # Not sooner: the first message of a topic may be on its way.
                self._reader.tell_unknown()
            return batch
        finally:
            self._waiting.release()

    def _taken(self, threads: int, *, must_look: bool = True) -> Batch | None:
        """Take messages of queues that no other thread has; None if there are none.

        Without `must_look` only if there is news of the topics, or queues were freed.
        """
        with self._lock:
            has_freed = self._has_freed.is_set()
            self._has_freed.clear()
            if must_look:
                self._reader.keep_up(self._unhandled())
            elif not (has_freed or self._reader.has_news(self._unhandled())):
                return None
            messages = self._reader.take(
                self._of_a_queue if threads > 1 else PUSH_MESSAGES, self._of_a_queue,
                without=self._queues(), threads=threads,
            )  # fmt: skip
            if not messages:
                return None
            epochs = self._reader.epochs_of({queue for queue, _ in messages})
            batch = Batch(messages, self._reader.replays, epochs)
            self._batches.append(batch)
            return batch

    def _queues(self) -> set[TopicQueue]:
        return {queue for batch in self._batches for queue in batch.queues}

    def _unhandled(self) -> dict[TopicQueue, int]:
        """Return the first offset that is not handled of each queue that a thread has."""
        return {q: offset for batch in self._batches for q, offset in self._left_of(batch).items()}

    def _left_of(self, batch: Batch) -> dict[TopicQueue, int]:
        """Return the first offset that is not handled of each queue, but of those that came back.

        Where a queue was lost and came back, the member is at the offset of who had it meanwhile.
        """
        now = self._reader.epochs_of(batch.queues)
        left = batch.unhandled().items()
        return {q: offset for q, offset in left if now.get(q) in (None, batch.epochs.get(q))}

    def _owns(self, batch: Batch, queue: TopicQueue) -> bool:
        return self._reader.is_owned(queue, batch.epochs.get(queue))

    # --- pushing ----------------------------------------------------------------------------

    def _push(self, batch: Batch, stopping: threading.Event | None) -> None:
        """Serve a batch; what was not handled and cannot be sent back is handed out again."""
        reader, are_doubtful = self._reader, True
        try:
            while not (batch.is_done or (stopping is not None and stopping.is_set())):
                with self._lock:
                    message = batch.next_message(partial(self._owns, batch), reader.send_back)
                if message is not None:
                    self._serve(batch, batch.together(self._handler.batch_max_size))
                if reader.is_commit_due:
                    with self._lock:
                        batch.send_back(reader.send_back)
                        self.commit()
            with self._lock:
                batch.send_back(reader.send_back)
            are_doubtful = False
        finally:
            # Whoever gave the call up has done this.
            if not batch.is_given_up:
                self._give_again(batch, are_doubtful=are_doubtful)

    def commit(self) -> None:
        """Commit what all threads have handled: one commit. Raises: StorageError."""
        with self._lock:
            self._reader.commit(self._unhandled())

    def _give_again(self, batch: Batch, *, are_doubtful: bool = True) -> None:
        """Have what was not handled handed out again, to any thread."""
        with self._lock:
            self._reader.give_again(self._left_of(batch), are_doubtful=are_doubtful)
            self._reader.note_received()
            self._batches = [other for other in self._batches if other is not batch]
            self._has_freed.set()

    def _serve(self, batch: Batch, messages: Sequence[ReceivedMessage]) -> None:
        """Call the handler. Raises: CallGivenUpError."""
        self.begin_watch()
        call = _Call(batch, messages, elapsed_ms(self._clock), threading.current_thread())
        try:
            self._calls.append(call)
            failure = self._handler.failure_of(messages)
        finally:
            interrupt: BaseException | None = None
            # An interrupt may come at any step: once it is over, nobody gives the call up.
            while not call.is_over:
                try:
                    # Where the call is being given up, this waits for the end of that.
                    with self._lock:
                        self._hanging -= batch.is_given_up and not call.has_come_back
                        call.has_come_back = True
                        if call in self._calls:
                            self._calls.remove(call)
                        call.is_over = True
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if interrupt is not None:
                raise interrupt
        if batch.is_given_up:
            raise CallGivenUpError
        with self._lock:
            # A message whose handler was interrupted is handed out again.
            if not call.is_failed:
                self._finish(call, failure)
            batch.add_to_turn(elapsed_ms(self._clock) - call.begun_ms, self._turn_ms)

    def _finish(self, call: _Call, failure: str | BaseException | None) -> None:
        """Note what became of the messages of a call; in order the first one stays the next."""
        reader, batch = self._reader, call.batch
        is_owned = partial(self._owns, batch)
        for message in call.messages:
            queue, _ = batch.first
            tries = reader.tries(queue, message.queue_offset) if reader.is_orderly else 0
            is_final = not reader.is_orderly or tries >= self._max_times
            if failure is not None and not is_final and is_owned(queue):
                # Those behind it wait with it.
                batch.leave_in_place()
                reader.fail_in_place(queue, message.queue_offset, self._suspend_s)
                return
            batch.finish(failure, is_owned, tries)

    # --- calls that hang --------------------------------------------------------------------

    def begin_watch(self) -> None:
        """Look for calls that hang, in a thread of its own."""
        if self._watch is not None:
            return
        with self._lock:
            if self._watch is None:
                watch = _HangingLook(self, min(HANGING_LOOK_S, self._timeout_s / 2))
                watch.begin()
                self._watch = watch

    def give_up_hanging(self) -> None:
        """Give up the calls that are under way and take too long.

        Their messages are sent back, offsets are committed up to them, and the rest is handed out
        again.
        """
        for call in tuple(self._calls):
            if elapsed_ms(self._clock) - call.begun_ms < self._timeout_s * 1000:
                continue
            with self._lock:
                # The handler may have come back meanwhile.
                if call in self._calls:
                    self._give_up(call)

    def _give_up(self, call: _Call) -> None:
        reader, batch = self._reader, call.batch
        if not call.is_failed:
            error = ConsumeTimeoutError(self._timeout_s)
            self._finish(call, error)
            call.is_failed = True
            self._handler.report_aside(call.messages, error)
        batch.send_back(reader.send_back)
        self._calls.remove(call)
        batch.is_given_up = True
        self._hanging += 1
        try:
            reader.commit(self._unhandled())
        finally:
            self._give_again(batch)
            self._given_up(call.thread, batch.result)

    def _leave(self, *_: object) -> None:
        # The thread that hangs is the user's own: only other members can go on.
        self._reader.leave()

    @property
    def hangs_too_often(self) -> ConsumeTimeoutError | None:
        """The error that ends a consumer whose calls hang in too many threads."""
        is_too_often = self._hanging >= HANGING_MAX * self.threads
        return ConsumeTimeoutError(self._timeout_s) if is_too_often else None


class _HangingLook(ThreadHandle):
    """Looks for calls that hang, in a thread of its own."""

    def __init__(self, push: MessagePush, interval_s: float) -> None:
        super().__init__("consumer-hanging", interval_s, first_s=interval_s)
        self._push = push

    def end(self) -> None:
        """Stop, also where it is this thread itself that finds nobody left to look at."""
        if threading.current_thread() is self._thread:
            self._stopping.set()
        else:
            self.stop()

    def _turn(self) -> None:
        try:
            self._push.give_up_hanging()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("a message whose handler hangs could not be sent back; trying again")


@dataclass(slots=True, eq=False)
class _Call:
    """One call of the handler."""

    batch: Batch
    messages: Sequence[ReceivedMessage]
    begun_ms: int
    thread: threading.Thread
    is_failed: bool = False
    has_come_back: bool = False
    is_over: bool = False


class Batch:
    """Messages that were handed out and wait for the handler, and those that it failed on.

    A message that failed is sent back before the next message of its queue is served: an effect by
    offset, as that of DeltaInbox, says that all messages before it are done.

    Attributes:
        queues: the queues of its messages.
        epochs: in which epoch of its group the member got each of them.
        is_given_up: whether another thread goes on with what is left of it.
    """

    def __init__(
        self,
        messages: Iterable[QueueMessage],
        replays: Mapping[TopicQueue, int],
        epochs: Mapping[TopicQueue, int],
    ) -> None:
        """Take messages; `replays` says how often the group went back in a queue on purpose."""
        self._waiting, self._replays, self.epochs = deque(messages), replays, epochs
        self.queues = frozenset(queue for queue, _ in self._waiting)
        self._failed: list[tuple[TopicQueue, FailedMessage]] = []
        self._left_out: dict[TopicQueue, ReceivedMessage] = {}
        self._served: TopicQueue | None = None
        self._served_ms = 0
        self._consumed, self._sent_back = 0, 0
        self.is_given_up = False

    @property
    def result(self) -> ConsumeResult:
        """The counts so far."""
        return ConsumeResult(self._consumed, self._sent_back)

    @property
    def first(self) -> QueueMessage:
        """The message that is next, with its queue."""
        return self._waiting[0]

    def together(self, count: int) -> list[ReceivedMessage]:
        """Return the next message and those right behind it in its queue, `count` at most."""
        queue, message = self.first
        if count == 1:
            return [message]
        waiting = itertools.islice(self._waiting, count)
        return [m for _, m in itertools.takewhile(lambda next_: next_[0] == queue, waiting)]

    @property
    def is_done(self) -> bool:
        """Whether no message waits any more."""
        return not self._waiting

    def next_message(
        self, is_owned: Callable[[TopicQueue], bool], send: Send
    ) -> ReceivedMessage | None:
        """Return the next message for the handler; None if it is left out since its queue was lost.

        It stays the next one until `finish`. Sends back what failed before it in its queue.
        """
        queue, message = self._waiting[0]
        if any(failed == queue for failed, _ in self._failed):
            self.send_back(send)
        # The member may get the queue again: messages after one that was left out wait too.
        if queue in self._left_out or not is_owned(queue):
            self._left_out.setdefault(queue, message)
            self._waiting.popleft()
            return None
        return message

    def finish(
        self,
        failure: str | BaseException | None,
        is_owned: Callable[[TopicQueue], bool],
        tries: int = 0,
    ) -> None:
        """Note what became of the next message; None means that the handler handled it.

        A failure counts only while the queue is owned: else another member has the message.
        `tries` is how often it has failed in its place before.
        """
        queue, message = self.first
        if failure is not None and not is_owned(queue):
            self._left_out.setdefault(queue, message)
        elif failure is not None:
            replay = replay_of(self._replays, queue)
            self._failed.append(
                (queue, FailedMessage(message, failure, replay=replay, tries=tries))
            )
        self._pass()

    def leave_in_place(self) -> None:
        """Leave the next message for another try, with all behind it in its queue."""
        self._left_out.setdefault(*self.first)
        self._pass()

    def _pass(self) -> None:
        # Last, for an interrupt before would lose what became of the message.
        queue, _ = self._waiting.popleft()
        self._consumed += 1
        if queue != self._served:
            self._served, self._served_ms = queue, 0

    def add_to_turn(self, took_ms: int, turn_ms: float) -> None:
        """Add the time of a call to the turn of its queue, whose next messages wait if it is over.

        They are left out of this batch, so the other queues in it have their turn.
        """
        self._served_ms += took_ms
        if self._served_ms >= turn_ms and self._waiting and self._waiting[0][0] == self._served:
            self._left_out.setdefault(*self._waiting[0])

    def send_back(self, send: Send) -> None:
        """Have `send` send back the messages that failed; they are durable on return."""
        if self._failed:
            self._sent_back += send([failed for _, failed in self._failed])
            self._failed = []

    def unhandled(self) -> dict[TopicQueue, int]:
        """Return the first offset of each queue that was neither handled nor sent back."""
        waiting = ((queue, message.queue_offset) for queue, message in self._waiting)
        failed = ((queue, failed.message.queue_offset) for queue, failed in self._failed)
        left_out = ((queue, message.queue_offset) for queue, message in self._left_out.items())
        return first_offsets([*waiting, *failed, *left_out])
