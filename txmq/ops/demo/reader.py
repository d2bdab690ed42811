"""What the demo sees in the store without Spark, and what its dispatchers say they did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txmq.delta.table import Table
from txmq.message.ids import HEAD_SEQUENCE
from txmq.message.lifecycle import TransactionState
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.demo.books import Books
from txmq.ops.demo.folder import DemoFolder
from txmq.ops.demo.plan import COURSES, DEPARTED, TOPICS, Fate, PlannedTransaction
from txmq.store.settled import NOTHING
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa


IN_FLIGHT = "in flight at a kill"
READ_TOPICS = (*TOPICS, TRANS_CHECK_MAX_TIME_TOPIC)
_TOPIC_COLUMNS = ("transaction_id", "keys", "tags", "op_version")
_HALF_COLUMNS = ("transaction_id", "sequence", "keys")
_SETTLED_COLUMNS = ("transaction_id", "state", "source", "op_version")
_ORDER = "op_version"

# How often a message is visible, by its topic, flight and transaction.
Visible = Counter[tuple[str, int, str]]


class PlainReader:
    """Polls the topics, and less often the logs for the counters."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        op_table_id = store.tables.op_log().table.log.table_id
        self.ledger = Ledger()
        self._topics = {
            name: Tail(store.tables.topic_log(name, op_table_id).table, _TOPIC_COLUMNS)
            for name in READ_TOPICS
        }
        self._half = Tail(store.tables.half_log().table, _HALF_COLUMNS)
        self._settled = Tail(store.tables.settled_log(op_table_id).table, _SETTLED_COLUMNS)

    def read_topics(self) -> None:
        """Note when each transaction was last seen with a new message: then it is complete."""
        for name, tail in self._topics.items():
            rows = tail.new_rows()
            now_s = time.time()
            self.ledger.messages[name] += len(rows)
            self.ledger.seen_s.update(
                dict.fromkeys((str(row["transaction_id"]) for row in rows), now_s)
            )

    def read_logs(self) -> None:
        """Read ends before halves, but note them after, so that no end lacks its half."""
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
        """How many transactions are prepared and have no end."""
        return len(self.heads) - len(self.ends)

    def in_state(self, state: TransactionState) -> int:
        """Count the transactions that ended in this state."""
        return sum(end is state for end, _ in self.ends.values())

    @property
    def visible(self) -> int:
        """Messages in the flights' topics."""
        return sum(self.messages[topic] for topic in TOPICS)


class Tail:
    """Follows an append-only table by its new files.

    Compaction writes old rows into new files. Where the rows have an `op_version`, each row still
    comes once.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        """Open nothing yet; the table need not exist."""
        self._table = table
        self._columns = columns
        self._seen: set[str] = set()
        self._through = NOTHING
        self._is_open = False

    def new_rows(self) -> Sequence[Mapping[str, object]]:
        """Read the rows since the last call."""
        if not self._has_news():
            return []
        files = self._table.refresh().files.all()
        new_files = [file for file in files if file.path not in self._seen]
        self._seen.update(file.path for file in new_files)
        rows: pa.Table = self._table.rows.read(new_files, self._columns)
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
            return self._table.log.has_news()
        self._is_open = self._table.exists()
        return self._is_open


def visible_messages(store: Store) -> tuple[Visible, Counter[str]]:
    """Read all topics again; return the visible messages and the departures per carrier."""
    op_table_id = store.tables.op_log().table.log.table_id
    messages: Visible = Counter()
    carriers: Counter[str] = Counter()
    for name in TOPICS:
        for row in Tail(store.tables.topic_log(name, op_table_id).table, _TOPIC_COLUMNS).new_rows():
            messages[name, int(str(row["keys"])), str(row["transaction_id"])] += 1
            carriers[str(row["tags"])] += name == DEPARTED
    return messages, carriers


# --- what the dispatchers did ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truth:
    """The content of all dispatchers' own tables together."""

    fates: Mapping[str, Fate]
    messages: Visible
    carriers: Mapping[str, int]
    commits: Mapping[str, float]

    @classmethod
    def read(cls, folder: DemoFolder, plan: Sequence[PlannedTransaction]) -> Truth:
        """Read the tables of all dispatchers."""
        fates: dict[str, Fate] = {}
        commits: dict[str, float] = {}
        messages: Visible = Counter()
        carriers: Counter[str] = Counter()
        for dispatcher in range(folder.settings().dispatchers):
            books = Books(folder.books(dispatcher))
            fates |= {key: plan[number].fate for key, number in books.fates().items()}
            commits |= books.commits()
            for flight_id, transaction_id, carrier, topics in books.departures():
                messages.update((topic, flight_id, transaction_id) for topic in topics.split())
                carriers[carrier] += DEPARTED in topics.split()
            books.close()
        return cls(fates, messages, +carriers, commits)


@dataclass(frozen=True, slots=True)
class Exactness:
    """The difference between what the dispatchers did and what is visible, both ways."""

    missing: Visible
    surplus: Visible

    @classmethod
    def of(cls, done: Visible, visible: Visible) -> Exactness:
        """Compare counts, so that a message that is visible twice is one too many."""
        return cls(done - visible, visible - done)

    @property
    def is_clean(self) -> bool:
        """Whether each message is visible once, and nothing else is visible."""
        return not self.missing and not self.surplus


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fate: how many transactions were planned to have it, and how they ended."""

    name: str
    planned: int | None
    planned_state: TransactionState | None
    states: Mapping[TransactionState, int]
    sources: Mapping[str, int]

    @property
    def is_as_planned(self) -> bool:
        """Whether all of them ended as their fate demands."""
        if self.planned_state is None:
            return True
        return dict(self.states) == ({self.planned_state: self.planned} if self.planned else {})


def outcomes(
    plan: Sequence[PlannedTransaction], fates: Mapping[str, Fate], ledger: Ledger
) -> list[Outcome]:
    """Compare planned and real ends: an outcome for each fate, one for what a kill cut."""
    planned = Counter(transaction.fate for transaction in plan)
    ends: dict[str, Counter[TransactionState]] = {}
    sources: dict[str, Counter[str]] = {}
    for transaction_id in ledger.heads:
        fate = fates.get(transaction_id, IN_FLIGHT)
        state, source = ledger.ends.get(transaction_id, (TransactionState.PENDING, "nobody"))
        ends.setdefault(fate, Counter())[state] += 1
        sources.setdefault(fate, Counter())[source] += 1
    rows: list[tuple[str, int | None, TransactionState | None]] = [
        (fate, planned[fate], COURSES[fate].state) for fate in Fate
    ]
    return [
        Outcome(name, count, state, ends.get(name, Counter()), sources.get(name, Counter()))
        for name, count, state in [*rows, (IN_FLIGHT, None, None)]
    ]
