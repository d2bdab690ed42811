"""The plain reader of the demo: no Spark, new rows of the tables as they come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmq.delta.reading import ReadTable
from txmq.delta.schemas import HEAD_SEQUENCE
from txmq.demo.plan import TOPICS
from txmq.lifecycle import TransactionState
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.settled import NOTHING
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

READ_TOPICS = (*TOPICS, TRANS_CHECK_MAX_TIME_TOPIC)
_TOPIC_COLUMNS = ("transaction_id", "keys", "tags", "op_version")
_HALF_COLUMNS = ("transaction_id", "sequence", "keys")
_SETTLED_COLUMNS = ("transaction_id", "state", "source", "op_version")
_ORDER = "op_version"


class Tail:
    """The rows of an append-only table as they come: those of the files that are new.

    Compaction writes old rows into new files; where a column says the order of the rows, each
    comes once all the same.
    """

    def __init__(self, table: ReadTable, columns: Sequence[str]) -> None:
        """The table may not be there yet."""
        self._table = table
        self._columns = columns
        self._seen: set[str] = set()
        self._through = NOTHING
        self._is_open = False

    def new_rows(self) -> Sequence[Mapping[str, object]]:
        """What came since the last call."""
        if not self._has_news():
            return []
        new = [file for file in self._table.refresh().files() if file.path not in self._seen]
        self._seen.update(file.path for file in new)
        rows: pa.Table = self._table.read(new, self._columns)
        return self._not_seen(rows.to_pylist())

    def _not_seen(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        if _ORDER not in self._columns or not rows:
            return rows
        # A commit of these tables holds all rows up to its mark.
        fresh = [row for row in rows if row[_ORDER] > self._through]
        self._through = max(self._through, *(row[_ORDER] for row in rows))
        return fresh

    def _has_news(self) -> bool:
        if self._is_open:
            return self._table.has_news()
        self._is_open = self._table.exists()
        return self._is_open


@dataclass(slots=True)
class Ledger:
    """What the reader has seen so far."""

    heads: set[str] = field(default_factory=set)
    flights: set[str] = field(default_factory=set)
    ends: dict[str, tuple[TransactionState, str]] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    seen_s: dict[str, float] = field(default_factory=dict)

    @property
    def open_transactions(self) -> int:
        """Prepared and without an end."""
        return len(self.heads) - len(self.ends)

    def in_state(self, state: TransactionState) -> int:
        """How many transactions came to this end."""
        return sum(found is state for found, _ in self.ends.values())

    @property
    def visible(self) -> int:
        """Messages in the flights' topics."""
        return sum(self.messages[topic] for topic in TOPICS)


class PlainReader:
    """Polls the topics for news, and now and then the logs for the counters."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        op_table_id = store.op_log().table.table_id
        self.ledger = Ledger()
        self._topics = {
            name: Tail(store.topic_log(name, op_table_id).table, _TOPIC_COLUMNS)
            for name in READ_TOPICS
        }
        self._half = Tail(store.half_log().table, _HALF_COLUMNS)
        self._settled = Tail(store.settled_log(op_table_id).table, _SETTLED_COLUMNS)

    def read_topics(self) -> None:
        """Note when each transaction was seen whole: its last message counts."""
        for name, tail in self._topics.items():
            rows = tail.new_rows()
            now_s = time.time()
            self.ledger.messages[name] += len(rows)
            self.ledger.seen_s.update(
                dict.fromkeys((str(row["transaction_id"]) for row in rows), now_s)
            )

    def read_logs(self) -> None:
        """First what ended, then what began: so that nothing ends before it begins."""
        ends = self._settled.new_rows()
        self._note_halves(self._half.new_rows())
        for row in ends:
            end = TransactionState(str(row["state"])), str(row["source"])
            self.ledger.ends[str(row["transaction_id"])] = end

    def _note_halves(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            self.ledger.flights.add(str(row["keys"]))
            if row["sequence"] == HEAD_SEQUENCE:
                self.ledger.heads.add(str(row["transaction_id"]))


Visible = Counter[tuple[str, int, str]]


def visible_messages(store: Store) -> tuple[Visible, Counter[str]]:
    """A fresh look at all topics: (topic, flight, transaction) and departures per carrier."""
    op_table_id = store.op_log().table.table_id
    found: Visible = Counter()
    carriers: Counter[str] = Counter()
    for name in TOPICS:
        for row in Tail(store.topic_log(name, op_table_id).table, _TOPIC_COLUMNS).new_rows():
            found[name, int(str(row["keys"])), str(row["transaction_id"])] += 1
            carriers[str(row["tags"])] += name == TOPICS[0]
    return found, carriers


def one_liner(store: Path) -> str:
    """How anybody reads a topic without txmq."""
    topic = store / "topics" / TOPICS[0]
    return (
        'python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{topic}').to_pandas(columns=['queue_id', 'queue_offset', "
        "'keys', 'tags', 'transaction_id']))\""
    )
