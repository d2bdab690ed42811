"""Renews the immunity of the transactions that this producer works on, however long it takes.

The check asks about a transaction six seconds after its half, and a change by Spark takes longer.
So the producer says, again and again while it lives, which transactions it still works on
(`txmq.store.renewals`). It says nothing of a transaction that is over within a second.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from txmq.errors import EnvironmentProblemError
from txmq.ground.clock import Clock, clock_of_store, elapsed_ms, follows_storage
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.store.renewals import TRANSACTIONS_MAX, Renewal, RenewalFile
from txmq.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S, LOOK_LEAST_S = 1.0, 0.05
# Of a lease, so that two renewals may fail.
RENEWALS_IN_A_LEASE = 3
# So long an object store may take for a small file, however short the lease is.
TIMEOUT_LEAST_S = 1.0
# Of the time before the first check.
FIRST_PART = 4


class Renewing(ThreadHandle):
    """The open transactions of one producer, and the thread that renews them.

    A transaction is open from its `prepare()` to its end, while somebody holds it: the block of a
    `with` that is left, and an object that nothing refers to any more, are over. Of two objects for
    one transaction, as two tries of one key have, the end of one says nothing of the other. It is
    renewed for `transaction_renewal_max_s` at the longest, by the time that this process counts.
    `add` and `discard` may be called from any
    thread, and take no lock once the thread runs.

    Writes: a file in `renewals/` for all transactions together, once in a third of
    `producer_lease_s`, and within a second of a new one; none for a transaction that ends within a
    second. Removes the file when nothing is open. Commits: 0.
    """

    def __init__(
        self,
        store: Store,
        *,
        producer_group: str,
        client_id: str,
        clock: Clock,
    ) -> None:
        """Write nothing yet, and start no thread: the first transaction does."""
        settings = store.config.of_group(producer_group)
        self._lease_s = settings.producer_lease_s
        self._after_s = min(LOOK_S, settings.transaction_timeout_s / FIRST_PART)
        self._renewal_s = self._lease_s / RENEWALS_IN_A_LEASE
        look_s = min(self._after_s, self._renewal_s)
        super().__init__("renewals", max(look_s, LOOK_LEAST_S))
        self._max_s = settings.transaction_renewal_max_s
        self._group, self._client_id = producer_group, client_id
        self._clock = clock_of_store(clock)
        timeout_s = max(self._renewal_s, TIMEOUT_LEAST_S)
        self._file = RenewalFile(store, client_id, timeout_s=timeout_s)
        # Transactions that were ended by their ids since the last look.
        self._ended: set[str] = set()
        # By the id of a transaction and that of the object which holds it.
        self._open: dict[tuple[str, int], tuple[float, Callable[[], object]]] = {}
        # What the file lists, and since when; None: there is no file.
        self._listed: frozenset[str] | None = None
        self._listed_s = 0.0
        self._has_too_many = self._is_failing = False
        self._lock = threading.Lock()
        # Where a test sets the clock, it also calls `run_once`.
        self._has_begun = not follows_storage(clock)

    def _now_s(self) -> float:
        return elapsed_ms(self._clock) / 1000

    def add(self, transaction_id: str, holder: object) -> None:
        """Renew a transaction from now on, while `holder` is alive."""
        self.add_all([(transaction_id, holder)])

    def add_all(self, holders: Sequence[tuple[str, object]]) -> None:
        """Renew transactions from now on, each while its holder is alive."""
        if not self._max_s or not holders:
            return
        now_s = self._now_s()
        for transaction_id, holder in holders:
            self._open[transaction_id, id(holder)] = now_s, weakref.ref(holder)
        if not self._has_begun:
            self._begin_once()

    def discard(self, transaction_id: str, holder: object) -> None:
        """Renew a transaction no longer for this holder."""
        self._open.pop((transaction_id, id(holder)), None)

    def discard_all(self, transaction_id: str) -> None:
        """Renew a transaction no longer, whoever holds it."""
        if self._open:
            # The next look drops them: one that is ended by its id must not cost all that are open.
            self._ended.add(transaction_id)

    def run_once(self) -> int:
        """Write, or remove, the file as it is due; return how many transactions it lists.

        Requests: one, or none if nothing is due. Raises: StorageError.
        """
        now_s = self._now_s()
        open_s = self._due(now_s)
        if not open_s:
            self._remove()
        elif self._is_due(open_s.keys(), now_s):
            self._put(open_s, now_s)
        return len(open_s)

    def _due(self, now_s: float) -> dict[str, float]:
        """Return how long each transaction is open that is to be listed, the oldest first."""
        open_s: dict[str, float] = {}
        ended, self._ended = self._ended, set()
        for key, (since_s, holder) in self._open.copy().items():
            age_s = now_s - since_s
            if holder() is None or key[0] in ended:
                self._open.pop(key, None)
            elif age_s >= self._max_s:
                warning = (
                    "transaction %s is open for %.0f s (transaction_renewal_max_s): it is asked"
                )
                logger.warning(warning, key[0], age_s)
                self._open.pop(key, None)
            elif age_s >= self._after_s:
                open_s.setdefault(key[0], age_s)
        return self._not_too_many(open_s)

    def _not_too_many(self, open_s: dict[str, float]) -> dict[str, float]:
        """Return the oldest that a file may list; say once that the others are asked."""
        had_too_many, self._has_too_many = self._has_too_many, len(open_s) > TRANSACTIONS_MAX
        if self._has_too_many and not had_too_many:
            warning = "%d transactions are open; the %d oldest are renewed, the others are asked"
            logger.warning(warning, len(open_s), TRANSACTIONS_MAX)
        return dict(islice(open_s.items(), TRANSACTIONS_MAX)) if self._has_too_many else open_s

    def _is_due(self, keys: AbstractSet[str], now_s: float) -> bool:
        return self._listed != keys or now_s - self._listed_s >= self._renewal_s

    def _put(self, open_s: dict[str, float], now_s: float) -> None:
        self._file.put(
            Renewal(self._group, self._client_id, self._lease_s, self._clock.now_ms(), open_s)
        )
        self._listed, self._listed_s = frozenset(open_s), now_s

    def _remove(self) -> None:
        if self._listed is not None:
            # A file that may not be removed is over with its lease; it is not tried for ever.
            self._listed = None
            self._file.remove()

    def _begin_once(self) -> None:
        """Start the thread; without one the check asks, as if nobody renewed."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
        try:
            self.begin()
        except (RuntimeError, EnvironmentProblemError) as error:
            # The next transaction tries it again.
            self._has_begun = False
            logger.warning("open transactions are not renewed, so they are asked: %s", error)

    def _turn(self) -> None:
        try:
            self.run_once()
        except BaseException as error:
            if not is_survivable(error):
                raise
            # A line a second for hours would hide all others.
            level = logging.DEBUG if self._is_failing else logging.WARNING
            warning = "open transactions may be asked; the file of renewals cannot be written: %s"
            logger.log(level, warning, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _end(self) -> None:
        self._open.clear()
        self._turn()
