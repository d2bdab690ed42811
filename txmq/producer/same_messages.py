"""Compares the messages of two tries under one idempotency key; shows no value of a message."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile
from txmq.errors import BodyCodecError
from txmq.message.body_codec import BODY_KEY_ID, BODY_MARKS, BodyCodec, decoded
from txmq.message.erased import CONTENT, ERASED, is_erased
from txmq.message.ids import message_id
from txmq.message.trace_context import TRACEPARENT, TRACESTATE
from txmq.producer.dataframe import SEQUENCES_PER_DATAFRAME
from txmq.store.half import HalfLog

# A queue and a birth time follow from the try, and not from the work.
COMPARED = (
    "real_topic", "tags", "keys", "body", "properties", "sharding_key", "delay_s",
    "deliver_timestamp",
)  # fmt: skip
# All that can be compared with a message that was erased since.
_LEFT = tuple(name for name in COMPARED if name not in CONTENT)
_READ = ("transaction_id", "sequence", *COMPARED)
_SHOWN = 5
_BATCH_ROWS, _BATCH_BYTES = 1024, 8 * 1024 * 1024
_DIGESTS = 1 << 256


@dataclass(slots=True)
class _Rows:
    """Many rows in any order, as their number and the sum of their digests.

    Of rows among which some were erased only the number can be compared.
    """

    count: int = 0
    digest: int = 0
    has_erased: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        self.count += 1
        self.has_erased = self.has_erased or is_erased(row["properties"])
        digest = hashlib.sha256(b"".join(_digests(row).values())).digest()
        self.digest = (self.digest + int.from_bytes(digest, "big")) % _DIGESTS


@dataclass(slots=True)
class Messages:
    """What a try sends: single messages by their place, DataFrames by their place.

    Bodies are kept as digests, so memory does not grow with them.
    """

    first_sequence: int
    codec: BodyCodec | None = None
    single: dict[int, dict[str, bytes]] = field(default_factory=dict)
    frames: dict[int, _Rows] = field(default_factory=dict)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of the half log; heads without a message are left out."""
        for stored in rows:
            if stored["real_topic"] is None:
                continue
            row = _as_sent(stored, self.codec)
            beyond = row["sequence"] - self.first_sequence
            if beyond < 0:
                self.single[row["sequence"]] = _digests(row)
            else:
                place = beyond // SEQUENCES_PER_DATAFRAME
                self.frames.setdefault(place, _Rows()).add(row)

    def differences(self, sent: Messages) -> list[str]:
        """In what the stored messages (this) differ from those that are `sent`; at most a few."""
        problems = [*self._of_single(sent), *self._of_frames(sent)]
        more = len(problems) - _SHOWN
        return [*problems[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]

    def _of_single(self, sent: Messages) -> Iterator[str]:
        if len(self.single) != len(sent.single):
            yield f"{len(self.single):,} single messages there, {len(sent.single):,} here"
        for place in sorted(self.single.keys() & sent.single.keys()):
            stored, other = self.single[place], sent.single[place]
            # An erased message stays what the earlier try sent, and does not come back.
            compared = [name for name in COMPARED if name in stored]
            names = [_shown(name) for name in compared if stored[name] != other.get(name)]
            if names:
                yield f"message {place}: {', '.join(names)}"

    def _of_frames(self, sent: Messages) -> Iterator[str]:
        for place in sorted(self.frames.keys() | sent.frames.keys()):
            stored, other = self.frames.get(place, _Rows()), sent.frames.get(place, _Rows())
            if stored.count != other.count:
                yield f"DataFrame {place}: {stored.count:,} rows there, {other.count:,} here"
            elif not stored.has_erased and stored != other:
                yield f"DataFrame {place}: values of its rows"


def stored_messages(
    half: HalfLog, transaction_id: str, first_sequence: int, codec: BodyCodec | None = None
) -> Messages:
    """The messages of a transaction in the half log, read a part at a time."""
    messages = Messages(first_sequence, codec)
    seen: set[int] = set()
    for file in half.table.files_holding("transaction_id", pa.array([transaction_id])):
        for batch in _batches(half, file):
            rows = batch.filter(pc.equal(batch["transaction_id"], transaction_id)).to_pylist()
            # A retried append may have written a row twice.
            once = [row for row in rows if row["sequence"] not in seen]
            seen.update(row["sequence"] for row in once if row["sequence"] < first_sequence)
            messages.add(once)
    return messages


def new_messages(
    half: HalfLog,
    single: pa.Table,
    files: Sequence[NewFile],
    first_sequence: int,
    codec: BodyCodec | None = None,
) -> Messages:
    """The messages of a try: its rows, and the files that Spark wrote for its DataFrames."""
    messages = Messages(first_sequence, codec)
    for batch in single.select(list(_READ)).to_batches(_BATCH_ROWS):
        messages.add(batch.to_pylist())
    for file in files:
        for batch in _batches(half, DataFile(file.path, file.num_records, file.size_bytes, {})):
            messages.add(batch.to_pylist())
    return messages


def _batches(half: HalfLog, file: DataFile) -> Iterator[pa.RecordBatch]:
    rows = _BATCH_BYTES * file.num_records // max(file.size_bytes, 1)
    return half.table.batches(file, _READ, min(max(rows, 1), _BATCH_ROWS))


def _as_sent(row: Mapping[str, Any], codec: BodyCodec | None) -> Mapping[str, Any]:
    """A stored row with the body that was sent: another key may have encoded it since.

    A body that cannot be decoded any more is compared as one that was erased.
    """
    pairs = row["properties"] or ()
    if codec is None or BODY_KEY_ID not in dict(pairs):
        return row
    address = {
        "topic": row["real_topic"], "message_id": message_id(row["transaction_id"], row["sequence"])
    }  # fmt: skip
    others = [pair for pair in pairs if pair[0] not in BODY_MARKS]
    try:
        return {**row, "body": decoded({**row, **address}, codec), "properties": others}
    except BodyCodecError:
        return {**row, "properties": [(ERASED, "true")]}


def _digests(row: Mapping[str, Any]) -> dict[str, bytes]:
    names = _LEFT if is_erased(row["properties"]) else COMPARED
    return {name: hashlib.sha256(_plain(row[name])).digest() for name in names}


def _plain(value: Any) -> bytes:
    """A value as bytes; null and no properties are the same, and each try has its own trace."""
    if isinstance(value, list):
        value = [pair for pair in value if pair[0] not in (TRACEPARENT, TRACESTATE)]
    if value is None or value == []:
        return b"-"
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, list):
        return b"m" + repr(sorted(value)).encode()
    return b"t" + str(value).encode()


def _shown(name: str) -> str:
    return "topic" if name == "real_topic" else name
