"""Which dead letters an operator means."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import InvalidMessageError, MessageNotFoundError
from txmq.message.ids import message_address


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice of dead letters: some ids, or all before a time, or all.

    Raises: InvalidMessageError unless exactly one of the three is given.
    """

    message_ids: tuple[str, ...] = ()
    before: datetime | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        """Require exactly one, so that a forgotten argument never means "purge all"."""
        if bool(self.message_ids) + (self.before is not None) + self.everything != 1:
            problem = "must say which: message_ids, before a time, or everything"
            raise InvalidMessageError("chosen", problem)
        if self.before is not None and self.before.tzinfo is None:
            raise InvalidMessageError("before", "has no time zone; write datetime(..., tzinfo=UTC)")

    def of(self, rows: pa.Table) -> pa.Table:
        """The chosen rows. Raises: MessageNotFoundError, TransactionNotFoundError."""
        if self.everything:
            return rows
        if self.before is not None:
            return rows.filter(pc.less(rows["store_timestamp"], pa.scalar(self.before)))
        stored = set(rows["message_id"].to_pylist())
        for message_id in self.message_ids:
            message_address(message_id)
            if message_id not in stored:
                raise MessageNotFoundError(message_id)
        return rows.filter(pc.is_in(rows["message_id"], value_set=pa.array(self.message_ids)))


def check_chosen(chosen: object) -> None:
    """Refuse what is no Chosen. Raises: InvalidMessageError."""
    if not isinstance(chosen, Chosen):
        raise InvalidMessageError("chosen", f"must be a Chosen, not {type(chosen).__name__}")
