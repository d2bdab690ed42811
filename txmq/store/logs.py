"""The logs of one reader, and the order in which it moves to their newest versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from txmq.delta.storage import Table
from txmq.errors import StorageError
from txmq.lifecycle import Claim
from txmq.store.half import HalfLog
from txmq.store.op import OpLog
from txmq.store.schedule import ScheduleLog
from txmq.store.settled import SettledLog

# How often settle and clean-up may pass one reader before it gives up.
PASSED_ATTEMPTS = 3
Result = TypeVar("Result")


class Logs:
    """The handles of one reader on half, op, settled and schedule. Not safe for several threads.

    They move in the order settled, op, half, schedule, for two reasons. First, a row refers to
    rows in the next log: a fact to its claim, a claim to its halves. In this order those rows are
    visible. In the reverse order settle may run in between, so that facts refer to claims that the
    reader does not see (mark > op.version): a resumed transaction shows no check of its new life,
    and the op log looks as if it had been restored. Second, retention removes a delayed message
    from half before it removes it from the schedule, so that at least one of the two shows it.

    A reader folds the claims after `settled.mark` itself. Settle may process them at the same time;
    their commits stay for `log_reserved_time_s`. Who may sleep for longer reads by `consistent`.
    """

    def __init__(
        self,
        half: HalfLog,
        op: OpLog,
        settled_table: Table,
        schedule: ScheduleLog,
        set_aside: Callable[[int], Mapping[str, list[Claim]]] | None = None,
    ) -> None:
        """Open nothing yet; each log is opened at its first use.

        `set_aside` reads the claims of transactions that are set aside; it gets the count that the
        settled log has seen.
        """
        self._set_aside = set_aside
        self.half, self.op, self.schedule = half, op, schedule
        self._settled_table = settled_table

    @cached_property
    def settled(self) -> SettledLog:
        """The settled log with its mark for this op log."""
        return SettledLog(self._settled_table, self.op.table_id)

    def unsettled_claims(self, transaction_ids: Iterable[str]) -> dict[str, list[Claim]]:
        """The claims about these transactions that settle has not folded; 0 commits.

        They are beyond the settled mark, or wait because their transaction is set aside.
        """
        settled, op = self.settled, self.op
        claims = op.claims_between(settled.mark, op.table.version, transaction_ids)
        waiting = self.set_aside()
        for name in claims.keys() & waiting.keys():
            claims[name] = [*waiting[name], *claims[name]]
        return claims

    def consistent(self, read: Callable[[], Result]) -> Result:
        """What `read` gives; it reads again where settle and clean-up passed it meanwhile.

        Args:
            read: begins with a refresh of these logs.

        Raises: StorageError, where the settled log has not moved, or keeps passing the reader.
        """
        for _ in range(PASSED_ATTEMPTS):
            try:
                return read()
            except StorageError:
                mark = self.settled.mark
                self.refresh_claims()
                if self.settled.mark == mark:
                    raise
        return read()

    def set_aside(self) -> Mapping[str, list[Claim]]:
        """The claims that wait because their transaction is set aside; 0 commits."""
        count = self.settled.set_aside_count
        return {} if self._set_aside is None or not count else self._set_aside(count)

    def refresh(self) -> None:
        """Move to the newest versions, to read the states of given transactions.

        The schedule has its own `refresh`; call it after half was read.
        """
        self.refresh_claims()
        self.half.table.refresh()

    def refresh_claims(self) -> None:
        """Move settled and op, but not half.

        The publisher calls it to fix the range of claims to settle; it moves half after it has read
        each part of the range. Readers that need no halves call it too.
        """
        self.settled.table.refresh()
        self.op.refresh()

    def refresh_after_half(self) -> None:
        """Move half first, then settled and op, to list all transactions without an end.

        Each half is then read with its end. A half that is read after the claims would look open
        although it may have an end already.
        """
        self.half.table.refresh()
        self.refresh_claims()
