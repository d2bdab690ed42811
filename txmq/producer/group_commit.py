"""Group commit: threads of one process share commits, as a commit costs more than its rows."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import methodcaller
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from txmq.delta.failures import fork_problem, process_id
from txmq.errors import ClosedError

logger = logging.getLogger(__name__)

# So many of the threads whose answer is there are on their way at once. Of 512 threads fewer would
# make small commits, more would stand in each other's way.
AWAKE_AT_ONCE = 32
DEFAULT_MAX_WAITING = 100_000
# In a pause of this length somebody calls, while callers come one after the other.
ARRIVAL_PAUSE_S = 0.0005
# Threads that are not woken by each other after this time are woken together.
WAKE_ALL_S = 0.01
# Of items whose size nobody bounds, such as ends.
UNBOUNDED_BYTES = 1 << 62
_RELEASE = methodcaller("release")
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Answer_contra = TypeVar("Answer_contra", contravariant=True)


class Size(NamedTuple):
    """What an item adds to its commit."""

    rows: int
    bytes: int = 0


class GroupCommitter(Generic[Item, Answer]):
    """Commits the items of many threads in one thread.

    Items that arrive during a commit share the next one, so commits grow with the load. A single
    caller never waits for other callers.
    """

    def __init__(  # noqa: PLR0913 - the bounds of one committer
        self,
        commit: Callable[[list[Item]], Sequence[Answer]],
        *,
        name: str,
        max_rows: int,
        max_bytes: int = UNBOUNDED_BYTES,
        max_waiting: int = DEFAULT_MAX_WAITING,
        linger_s: float = 0.0,
        refuse: Callable[[Item, BaseException], None] | None = None,
        may_pass: Callable[[], bool] = lambda: False,
        owner: str | None = None,
    ) -> None:
        """Start no thread yet.

        Args:
            commit: makes items durable and returns an answer for each; it runs in one thread only.
            name: the name of the thread.
            max_rows: rows of one commit; a larger item gets a commit of its own.
            max_bytes: bytes of one commit; as `max_rows`.
            max_waiting: with so many items in the queue the next caller waits.
            linger_s: how long items gather before each commit, which costs as much as thousands of
                rows.
            refuse: answers an item of `put` that no commit will take, because the thread broke.
            may_pass: whether the calling thread never waits, because room in the queue depends on
                it; for example it runs callbacks. The committing thread is such a thread.
            owner: whose thread it is, for errors; the name of the thread by default.
        """
        self._commit = commit
        self._name, self._owner = name, owner or name
        self._max_rows, self._max_bytes, self._max_waiting = max_rows, max_bytes, max_waiting
        self._linger_s, self._is_urgent = linger_s, Bell()
        self._waiting: deque[_Entry[Item, Answer]] = deque()
        self._group: list[_Entry[Item, Answer]] = []
        self._lock = threading.Lock()
        self._has_rows = Bell()
        # The callers that wait for room.
        self._outside = Woken()
        self._thread: threading.Thread | None = None
        self._closed = self._has_ended = False
        self._refuse, self._may_pass = refuse, may_pass
        self._failure: BaseException | None = None
        # How many calls the last commit served, and how long it took.
        self._last_size, self._last_s = 0, 0.0
        # The thread sleeps or is not started yet, so the next caller has to wake it.
        self._is_idle = True
        self._woken = Woken()
        self._pid = process_id()

    def submit_to(self, answered: Answered[Answer], item: Item, size: Size) -> None:
        """Queue an item; the committing thread sets its answer or error. Raises: ClosedError."""
        self._enter((item, *size, answered))

    def put(self, item: Item, size: Size) -> None:
        """Queue an item whose answer `commit` delivers itself. Raises: ClosedError."""
        self._enter((item, *size, None))

    def _enter(self, entry: _Entry[Item, Answer]) -> None:
        """Queue an entry; take the lock only if a thread has to be woken or to wait.

        Threads that queue for the lock would sleep at every call.
        """
        # Before any lock: a lock that was held during a fork is never released in the child.
        self._check_process()
        if len(self._waiting) >= self._max_waiting and not self._never_waits():
            self._wait_for_room()
        if self._closed:
            self.check_usable()
        self._waiting.append(entry)
        if self._is_idle or self._closed or len(self._waiting) >= self._max_waiting:
            self._wake(entry)

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is the one that commits."""
        return self._thread is threading.current_thread()

    def _never_waits(self) -> bool:
        return self.is_own_thread or self._may_pass()

    def _wait_for_room(self) -> None:
        while self._is_full():
            pending = self._outside.asleep()
            if self._is_full():
                pending.acquire()

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._max_waiting and not self._closed

    def _wake(self, entry: _Entry[Item, Answer]) -> None:
        with self._lock:
            try:
                if self._has_ended and entry in self._waiting:
                    self.check_usable()
                self._start()
            except BaseException:
                # No thread will take this entry; it took all earlier ones.
                if entry in self._waiting:
                    self._waiting.remove(entry)
                raise
            if len(self._waiting) >= self._max_waiting:
                self._is_urgent.ring()
            self._has_rows.ring()

    def close(self) -> None:
        """Commit the queued items, then end the thread; in a forked process do nothing."""
        if not self.is_of_this_process:
            return
        with self._lock:
            self._closed = True
            self._has_ended = self._has_ended or self._thread is None
            self._is_urgent.ring()
            self._has_rows.ring()
        self._outside.wake_all()
        if self._thread is not None:
            self._thread.join()

    def check_usable(self) -> None:
        """Raise ClosedError if nothing more can be committed."""
        self._check_process()
        if not self._closed:
            return
        if self._failure is not None:
            why = type(self._failure).__name__
            message = f"the thread {self._name} of {self._owner} broke ({why}); make a new one"
            raise ClosedError(message) from self._failure
        message = f"{self._owner} is closed; make a new one"
        raise ClosedError(message)

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process made it, and not the process before a fork."""
        return self._pid == process_id()

    def _check_process(self) -> None:
        if self._pid != process_id():
            raise ClosedError(fork_problem(self._owner))

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            # Another caller must be able to start one. If this call was interrupted, the thread
            # may run all the same; it finds that it does not count.
            self._thread = None
            raise

    # --- its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            if not self.is_own_thread:
                return
        try:
            while self._takes_group():
                begun_s = time.monotonic()
                self._commit_group(self._group)
                self._last_size, self._last_s = len(self._group), time.monotonic() - begun_s
                # Free the items while the thread waits for the next ones.
                self._group = []
        except BaseException as error:
            logger.exception("%s: its thread broke", self._name)
            self._break(error)

    def _commit_group(self, group: Sequence[_Entry[Item, Answer]]) -> None:
        try:
            answers = self._commit([entry[0] for entry in group])
            pairs = list(zip(group, answers, strict=True))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            _fail(group, error, self._name)
            return
        for (_, _, _, awaited), answer in pairs:
            if isinstance(awaited, Awaited):
                awaited.set_result_in_turn(answer, self._woken)
            elif awaited is not None:
                awaited.set_result(answer)
        self._woken.wake(AWAKE_AT_ONCE)

    def _break(self, error: BaseException) -> None:
        """Answer everybody who waits, and refuse all who come."""
        with self._lock:
            self._failure, self._closed, self._has_ended = error, True, True
            # One that was just being taken is in both.
            entries = list({id(entry): entry for entry in (*self._group, *self._waiting)}.values())
            self._waiting.clear()
        self._outside.wake_all()
        self._woken.wake_all()
        for item, _, _, awaited in entries:
            if awaited is None:
                if self._refuse is not None:
                    self._refuse(item, error)
            elif not awaited.done():
                awaited.set_exception(error)
            elif isinstance(awaited, Awaited):
                # The thread may have broken while it woke the one that waits.
                awaited.wake()

    def _takes_group(self) -> bool:
        """Wait for items and take those of the next commit. Return False after `close`."""
        self._sleep()
        if self._linger_s:
            # During this wait callers do not have to wake the thread.
            self._is_urgent.wait(0 if self._closed else self._linger_s)
        elif self._last_size > 1:
            self._gather()
        with self._lock:
            # A ring of before this commit.
            self._is_urgent.wait(0)
            self._take()
            # Nobody waits for a commit on account of a thread that gave up waiting.
            self._woken.wake_all()
            self._outside.wake_all()
            # A caller that queues an item from now on sees that the thread has ended.
            self._has_ended = not self._group
            return not self._has_ended

    def _gather(self) -> None:
        """Wait while calls keep arriving: a commit of many costs little more than one of few.

        Callers of the last commit come back one after the other. It ends with the first pause in
        which nobody came, and never takes longer than the last commit did.
        """
        until_s = time.monotonic() + self._last_s
        count = len(self._waiting)
        while count < self._last_size and time.monotonic() < until_s:
            if self._is_urgent.wait(ARRIVAL_PAUSE_S):
                return
            if len(self._waiting) == count:
                return
            count = len(self._waiting)

    def _take(self) -> None:
        """Take the first entries that fit into one commit, at least one."""
        rows = size_bytes = 0
        group, waiting = self._group, self._waiting
        while waiting:
            entry = waiting[0]
            rows, size_bytes = rows + entry[1], size_bytes + entry[2]
            if group and (rows > self._max_rows or size_bytes > self._max_bytes):
                break
            # In this order: where the thread breaks in between, it is answered.
            group.append(entry)
            waiting.popleft()

    def _sleep(self) -> None:
        """Wait for an item or for `close`; a caller reads `_is_idle` after it queued its item."""
        self._is_idle = True
        while not (self._waiting or self._closed):
            if not self._has_rows.wait(WAKE_ALL_S if self._woken else -1):
                self._woken.wake_all()
        self._is_idle = False


# --- waiting and waking ---------------------------------------------------------------------------
#
# An interrupt is raised in the main thread between any two steps of Python, also inside
# threading.Condition: there it leaves a lock taken, or the next thread asleep, for ever. What
# follows takes and releases locks of C alone.


class Bell:
    """Wakes the one thread that waits for it; a ring before it waits counts."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        """Begin without a ring."""
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread, now or at its next wait; rings are not counted."""
        try:
            self._silent.release()
        except RuntimeError:
            return

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait for a ring, for ever or up to a time, and take it. Tell whether there was one."""
        return self._silent.acquire(timeout=timeout_s)


class Answered(Protocol[Answer_contra]):
    """Takes the answer to one item."""

    def done(self) -> bool:
        """Tell whether there is an answer or an error."""
        ...

    def set_result(self, answer: Answer_contra) -> None:
        """Take the answer; this or `set_exception` is called once, and must not raise."""
        ...

    def set_exception(self, error: BaseException) -> None:
        """Give the error."""
        ...


class Awaited(Generic[Answer]):
    """The answer that one thread waits for.

    A Future wakes its thread twice, for it holds its lock meanwhile; with hundreds of threads that
    is most of their time.
    """

    __slots__ = ("_answer", "_error", "_is_answered", "_pending", "_woken")

    def __init__(self) -> None:
        """Begin without an answer."""
        self._pending = threading.Lock()
        self._pending.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_answered = False
        self._woken: Woken | None = None

    def done(self) -> bool:
        """Tell whether there is an answer or an error."""
        return self._is_answered

    def set_result(self, answer: Answer) -> None:
        """Give the answer; call this or `set_exception` once."""
        self._answer, self._is_answered = answer, True
        self._pending.release()

    def set_result_in_turn(self, answer: Answer, woken: Woken) -> None:
        """Give the answer; `woken` wakes its thread."""
        self._answer, self._woken, self._is_answered = answer, woken, True
        woken.add(self._pending)

    def set_exception(self, error: BaseException) -> None:
        """Give the error."""
        self._error, self._is_answered = error, True
        self._pending.release()

    def wake(self) -> None:
        """Let its thread go on, or the next call of `result`; it may have been woken already."""
        try:
            self._pending.release()
        except RuntimeError:
            return

    def result(self, timeout_s: float = -1) -> Answer:
        """Wait for the answer, for ever or up to a time. Raises: the error; TimeoutError."""
        if not self._pending.acquire(timeout=timeout_s):
            raise TimeoutError
        self.wake()
        if self._woken is not None:
            self._woken.wake(1)
        if self._error is not None:
            raise self._error
        answer: Answer = self._answer
        return answer


class Woken:
    """Threads whose answers are there; each that wakes wakes the next one. Safe for many threads.

    Hundreds that are woken at once stand before the interpreter's lock, and each wakes every 5 ms
    to ask for it. A thread that gave up waiting wakes nobody: `wake_all` is for those behind it.
    """

    def __init__(self) -> None:
        """Begin with nobody who waits."""
        self._asleep: deque[threading.Lock] = deque()

    def __bool__(self) -> bool:
        """Tell whether some are not woken yet."""
        return bool(self._asleep)

    def add(self, pending: threading.Lock) -> None:
        """Add a thread that waits for this lock."""
        self._asleep.append(pending)

    def asleep(self) -> threading.Lock:
        """Add the calling thread. Return the lock that it waits for, once it has looked again."""
        pending = threading.Lock()
        pending.acquire()
        self._asleep.append(pending)
        return pending

    def wake(self, count: int) -> None:
        """Wake so many, or those that there are."""
        # In C, so that no interrupt comes between who is taken out and who is woken.
        woken = map(_RELEASE, iter(self._asleep.popleft, None))
        try:
            deque(islice(woken, count), maxlen=0)
        except IndexError:
            return

    def wake_all(self) -> None:
        """Wake all that are left; mostly there are none, as at each answer to a send."""
        if self._asleep:
            self.wake(len(self._asleep))


# An item, its rows and bytes, and who takes its answer.
_Entry = tuple[Item, int, int, Answered[Answer] | None]


def _fail(group: Sequence[_Entry[Item, Answer]], error: BaseException, name: str) -> None:
    for *_, awaited in group:
        if awaited is not None:
            awaited.set_exception(error)
    if any(awaited is None for *_, awaited in group):
        logger.error("%s: a commit failed, and its items have no future", name, exc_info=error)
