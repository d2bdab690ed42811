"""The logs as one reader sees them, and the order in which it moves to their newest versions."""

from __future__ import annotations

from functools import cached_property

from txmq.delta.storage import Table
from txmq.store.half import HalfLog
from txmq.store.op import OpLog
from txmq.store.schedule import ScheduleLog
from txmq.store.settled import SettledLog


class Logs:
    """The handles of one reader on half, op, settled and schedule. Not safe for several threads.

    They move in the order settled, op, half, schedule, for two reasons. First, a row refers to
    rows in the next log: a fact to its claim, a claim to its halves. In this order those rows are
    there. In the reverse order settle may run in between and leave facts beyond the claims (mark >
    op.version): a resumed transaction shows no check of its new life, and the op log looks as if
    it had been restored. Second, retention takes a delayed message out of half before it takes it
    out of the schedule, so that at least one of the two shows it.

    A reader folds the claims after `settled.mark` itself. Settle may take them meanwhile; their
    commits stay for `log_reserved_time_s`.
    """

    def __init__(
        self, half: HalfLog, op: OpLog, settled_table: Table, schedule: ScheduleLog
    ) -> None:
        """Open nothing yet; each log is opened at its first use."""
        self.half, self.op, self.schedule = half, op, schedule
        self._settled_table = settled_table

    @cached_property
    def settled(self) -> SettledLog:
        """The settled log, as it follows this op log."""
        return SettledLog(self._settled_table, self.op.table.table_id)

    def refresh(self) -> None:
        """Move to the newest versions, to read where given transactions stand.

        The schedule has a `refresh` of its own; call it after half was read.
        """
        self.refresh_claims()
        self.half.table.refresh()

    def refresh_claims(self) -> None:
        """Move settled and op, and leave half where it is.

        For the publisher: this fixes the range of claims to settle, and it moves half after it has
        read each part of the range. Also for readers that need no halves.
        """
        self.settled.table.refresh()
        self.op.table.refresh()

    def refresh_after_half(self) -> None:
        """Move half first, then settled and op, to list all transactions without an end.

        Each half in the list is then seen with its end. A half read after the claims would seem
        open, although it may have an end already.
        """
        self.half.table.refresh()
        self.refresh_claims()
