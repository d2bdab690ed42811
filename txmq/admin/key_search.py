"""Messages that have a key: keys have no index, so the key columns of topics are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.found_message import FoundMessage
from txmq.message.message import KEY_SEPARATOR

if TYPE_CHECKING:
    from txmq.delta.files import FileRange
    from txmq.delta.reading import ReadTable

_KEY_COLUMNS = ("keys", "message_id", "op_version", "queue_offset")


@dataclass(frozen=True, slots=True)
class KeySearch:
    """What a search with a bound found.

    Attributes:
        messages: the newest first.
        rows: of so many messages the keys were read.
        is_complete: whether all messages were searched that could be among the newest.
    """

    messages: tuple[FoundMessage, ...]
    rows: int
    is_complete: bool


@dataclass(slots=True)
class RowBudget:
    """How many rows may still be read."""

    rows: float = inf
    was_enough: bool = True

    def take(self, rows: int) -> bool:
        """Whether so many may be read; then they are taken."""
        if rows > self.rows:
            self.was_enough = False
            return False
        self.rows -= rows
        return True


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """A message that has the key; newer ones are greater."""

    op_version: int
    queue_offset: int
    message_id: str


def hits_of(table: ReadTable, key: str, max_count: int, budget: RowBudget) -> list[Hit]:
    """The newest messages of a topic that have the key, as far as the budget allows."""
    hits: list[Hit] = []
    for span in sorted(table.ranges("op_version"), key=_newest_first):
        is_full = len(hits) >= max_count and span.high is not None
        if is_full and span.high < hits[max_count - 1].op_version:
            break
        if not budget.take(span.file.num_records):
            break
        more = _hits_in(table.read([span.file], _KEY_COLUMNS), key)
        hits = sorted([*hits, *more], reverse=True)
    return hits[:max_count]


def is_one_key(key: object) -> bool:
    """Whether a message may have this as one of its keys."""
    is_key = isinstance(key, str) and bool(key) and KEY_SEPARATOR not in key
    # No text has half of a surrogate pair, and Arrow takes none.
    return is_key and not any("\ud800" <= letter <= "\udfff" for letter in str(key))


def has_key(keys: pa.ChunkedArray, key: str) -> pa.ChunkedArray:
    """Whether each text has `key` as one of its words."""
    padded = pc.binary_join_element_wise("", pc.fill_null(keys, ""), "", KEY_SEPARATOR)
    return pc.match_substring(padded, f"{KEY_SEPARATOR}{key}{KEY_SEPARATOR}")


def _newest_first(span: FileRange) -> tuple[bool, int]:
    """Sort key of files; a file without statistics comes first."""
    return span.high is not None, -(span.high or 0)


def _hits_in(rows: pa.Table, key: str) -> Iterator[Hit]:
    for row in rows.filter(has_key(rows["keys"], key)).drop_columns(["keys"]).to_pylist():
        yield Hit(row["op_version"], row["queue_offset"], row["message_id"])
