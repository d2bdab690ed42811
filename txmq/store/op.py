"""The op log: claims about transactions, in the order of Delta's commits (RocketMQ's op topic).

Claims of a group with keys are signed. Those that its keys have not signed do not count; those that
a key signed which this process does not know are not judged: whoever reads them waits or raises.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import commit_path
from txmq.delta.table import Table
from txmq.errors import ConfigError, StorageError, StoreFormatError, StoreNotFoundError, shown
from txmq.ground.clock import Clock, affine, follows_storage, milliseconds, timestamp
from txmq.ground.columns import Flags, Groups, first_of_each, flags, in_order, only, sound_rows
from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource
from txmq.store.config import Config
from txmq.store.config_faults import ACCEPT_UNSIGNED, VARIABLE
from txmq.store.schemas import OP, PLACE_LIMITS, SIGNATURE

logger = logging.getLogger(__name__)

KEY_CHARACTERS_MIN = 32
# A signature is the id of its key, and then the digest.
KEY_ID_BYTES, SIGNATURE_BYTES = 8, 8 + 32
CLAIM_COLUMNS = (
    "transaction_id", "ordinal", "kind", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp", "sequences",
)  # fmt: skip
SIGNED_COLUMNS = (*CLAIM_COLUMNS, SIGNATURE)
# What readers of a range of commits get.
CLAIMS = pa.schema(
    [*(OP.columns.field(name) for name in SIGNED_COLUMNS), pa.field("_commit_version", pa.int64())]
)
# Their order is part of the signature; the id of the op log, which names the store, comes first.
_SIGNED = (
    "transaction_id", "kind", "sequences", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp",
)  # fmt: skip
ENDS = pa.array([ClaimKind.COMMIT.value, ClaimKind.ROLLBACK.value])
_REQUIRED_COLUMNS = ("transaction_id", "ordinal", "producer_group")
_FIELDS = list(OP.columns)
_CURE = "restore this file; until then nothing is settled and nothing is skipped"


@dataclass(frozen=True, slots=True)
class OpRow:
    """A claim that is not written yet; its commit decides its place in the order."""

    transaction_id: str
    kind: ClaimKind
    producer_group: str
    source: ClaimSource
    op_timestamp_ms: int
    life: int | None = None
    check_times: int | None = None
    next_check_timestamp_ms: int | None = None
    reason: str | None = None
    sequences: tuple[int, ...] | None = None


class Judged(NamedTuple):
    """Claims that count, and those of keys that this process does not know.

    Those may be acknowledged: what comes after one of them is not decided here (decision 0050).
    """

    counted: pa.Table
    unknown: pa.Table


class OpLog:
    """Reads the op log and appends claims; ClaimWriter numbers the commits."""

    def __init__(
        self, table: Table, keys: ClaimKeys | None = None, *, believes_unknown: bool = False
    ) -> None:
        """Open nothing yet; `table` is not shared.

        Args:
            table: the op log.
            keys: claims of their groups are signed.
            believes_unknown: claims of unknown keys count, for a reader that must take no
                transaction for open that somebody may have ended.
        """
        self.table = table
        self._keys, self._believes_unknown = keys or ClaimKeys({}), believes_unknown
        self._stores_signatures: bool | None = None

    def refresh(self) -> OpLog:
        """Move to the newest version and return this object.

        Raises: StorageError; it names the newest commit file if that is what cannot be read.
        """
        with self._naming_the_file():
            self.table.refresh()
        return self

    @property
    def table_id(self) -> str:
        """The id of the op log. Raises: as `refresh`."""
        with self._naming_the_file():
            return self.table.log.table_id

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except StoreNotFoundError:
            raise
        except StorageError:
            newest = self.table.folder.newest_commit()
            self.check_commits(newest - 1, newest)
            raise

    def check_commits(self, after: int, through: int) -> None:
        """Check that the commit files after `after` up to `through` are whole; 0 commits.

        A file that lost its content reads as a commit without claims, and they would be skipped.

        Raises: StorageError; it names the file.
        """
        for version in range(after + 1, through + 1):
            problem = self.table.folder.commit_problem(version)
            if problem is not None:
                raise StorageError("op", f"{commit_path(version)} {problem}: {_CURE}")

    def between(self, after: int, through: int) -> pa.Table:
        """Read SIGNED_COLUMNS and `_commit_version` of the commits after `after` up to `through`.

        Malformed rows, which txmq does not write, are left out: any program may append to the log,
        and one bad row must not stop all transactions. So are claims in the name of a group with
        keys that none of them has signed.
        """
        return self._between(after, through).counted

    def _between(self, after: int, through: int) -> Judged:
        return self._judged(partial(self.table.changes.read, after + 1, through), warns=True)

    def first_between(
        self, after: int, through: int, enough_rows: int, *, refuses_removals: bool = False
    ) -> tuple[Judged, int]:
        """Read as `between`, up to the commit with which there are enough rows.

        If a commit cannot be read, those before it do not wait for its repair: the rows end before
        it. So they do where it `refuses_removals` and another program removed rows.

        Returns:
            The rows, and the last commit that was read.

        Raises: StorageError if the first commit cannot be read, or is not whole, as
            `check_commits`.
        """
        read = partial(self._first_between, refuses_removals=refuses_removals)
        try:
            return read(after, through, enough_rows)
        except StorageError:
            if through <= after + 1:
                raise
        first = read(after, after + 1, enough_rows)
        while (through := after + (through - after) // 2) > after + 1:
            with suppress(StorageError):
                return read(after, through, enough_rows)
        return first

    def _first_between(
        self, after: int, through: int, enough_rows: int, *, refuses_removals: bool
    ) -> tuple[Judged, int]:
        end = through

        def read(columns: Sequence[str]) -> pa.Table:
            nonlocal end
            rows, end = self.table.changes.read_first(
                after + 1, through, columns, enough_rows, _CURE, refuses_removals=refuses_removals
            )
            return rows

        return self._judged(read, warns=True), end

    def judged_between(self, after: int, through: int, transaction_ids: Iterable[str]) -> Judged:
        """Read the claims about these transactions in the commits after `after` up to `through`."""
        ids = pa.array(list(transaction_ids), pa.string())
        counted, unknown = (
            rows.filter(pc.is_in(rows["transaction_id"], value_set=ids))
            for rows in self._between(after, through)
        )
        return Judged(counted, unknown)

    def rows_about(self, transaction_ids: pa.Array) -> pa.Table:
        """Read SIGNED_COLUMNS of all live rows about these transactions, in no order.

        Malformed rows and those that were not signed are left out, as in `between`.
        """
        return self.judged_about(transaction_ids).counted

    def judged_about(self, transaction_ids: pa.Array) -> Judged:
        """Read as `rows_about`, with the claims of unknown keys."""
        return self._judged(partial(self.table.search.rows_of, "transaction_id", transaction_ids))

    def _judged(self, read: Callable[[Sequence[str]], pa.Table], *, warns: bool = False) -> Judged:
        if self._has_signatures:
            return self.judge(_well_formed(read(SIGNED_COLUMNS)), warns=warns)
        rows = _well_formed(read(CLAIM_COLUMNS))
        field = OP.columns.field(SIGNATURE)
        # Where it stands in a table that has it: readers put claims of several reads together.
        place = len(CLAIM_COLUMNS)
        rows = rows.add_column(place, field, pa.nulls(rows.num_rows, field.type))
        return self.judge(rows, warns=warns)

    @property
    def judges(self) -> bool:
        """Whether claims of any group have to be signed."""
        return bool(self._keys)

    @property
    def judging(self) -> Sequence[str]:
        """What decides which claims count: the names of the keys, no key itself."""
        return self._keys.names()

    def judge(self, rows: pa.Table, *, warns: bool = False) -> Judged:
        """Part claims, given as SIGNED_COLUMNS, by their signatures; leave out what is forged.

        Args:
            rows: the claims.
            warns: whether a warning counts those that are left out.
        """
        if not self._keys or not rows.num_rows:
            return Judged(rows, rows.slice(0, 0))
        judged = self._keys.judge(rows, self.table_id, warns=warns)
        # One that counts a check decides nothing.
        is_decisive = pc.not_equal(judged.unknown["kind"], ClaimKind.UNKNOWN.value)
        judged = judged._replace(unknown=judged.unknown.filter(is_decisive))
        if self._believes_unknown and judged.unknown.num_rows:
            return Judged(pa.concat_tables(judged), judged.unknown.slice(0, 0))
        return judged

    def received_ms(self, versions: Iterable[int], clock: Clock) -> dict[int, int]:
        """Read when the store received these commits, as `clock` shows it; 0 commits.

        Returns nothing for a clock that does not follow the storage, as in tests.
        """
        if not follows_storage(clock):
            return {}
        paths = {commit_path(version): version for version in versions}
        written_ms = self.table.folder.written_ms(list(paths))
        return {paths[path]: affine(clock).at(ms) for path, ms in written_ms.items()}

    def append(self, rows: Sequence[OpRow], queue_id: int, *, app_id: str, number: int) -> int:
        """Append claims in one commit and return its version. Raises: as `TableWriter.append`."""
        return self.append_table(op_table(rows, queue_id), queue_id, app_id=app_id, number=number)

    def append_table(
        self, rows: pa.Table, queue_id: int, *, app_id: str, number: int, note: str = ""
    ) -> int:
        """Append claims, given as columns of OP, in one commit; set queue, ordinals and date."""
        claims = _as_one_commit(rows, queue_id)
        if self._keys:
            claims = self._keys.signed(claims, self.table_id)
        claims = self._storable(claims)
        return self.table.writer.append(claims, app_id=app_id, number=number, note=note)

    @property
    def _has_signatures(self) -> bool:
        # Looked at once: a pinned version that is newer is another read of the log.
        if self._stores_signatures is None:
            self._stores_signatures = SIGNATURE in self.table.log.column_names
        return self._stores_signatures

    def _storable(self, rows: pa.Table) -> pa.Table:
        """Drop the column that the stored table lacks: an earlier txmq made none for signatures.

        Raises: StoreFormatError if claims have to be signed.
        """
        if self._has_signatures:
            return rows
        if self._keys:
            problem = "has no column signature, an earlier txmq made it; run txmq upgrade"
            raise StoreFormatError("op", problem)
        return rows.drop_columns([SIGNATURE])


def _as_one_commit(rows: pa.Table, queue_id: int) -> pa.Table:
    """Set ordinals, one queue and one date, so that a commit is one file."""
    count = rows.num_rows
    shared = {
        "queue_id": pa.repeat(pa.scalar(queue_id, pa.int32()), count),
        "ordinal": pa.array(range(count), pa.int64()),
    }
    if count:
        day = rows["store_date"][0]
        shared["store_date"] = pa.repeat(day, count)
    for name, values in shared.items():
        rows = rows.set_column(rows.schema.get_field_index(name), OP.columns.field(name), values)
    return rows


def _well_formed(rows: pa.Table) -> pa.Table:
    """Return the rows that are claims; other programs may append anything."""
    is_known = pc.and_(
        pc.is_in(rows["kind"], value_set=pa.array([kind.value for kind in ClaimKind])),
        pc.is_in(rows["source"], value_set=pa.array([source.value for source in ClaimSource])),
    )
    return sound_rows(rows.filter(is_known), _REQUIRED_COLUMNS, PLACE_LIMITS)


def op_table(rows: Sequence[OpRow], queue_id: int) -> pa.Table:
    """Return the rows of one commit as Arrow; `ordinal` is their order within it."""
    moments = [timestamp(row.op_timestamp_ms) for row in rows]
    columns = {
        "transaction_id": [row.transaction_id for row in rows],
        "queue_id": [queue_id] * len(rows),
        "ordinal": list(range(len(rows))),
        "kind": [row.kind.value for row in rows],
        "sequences": [row.sequences for row in rows],
        "source": [row.source.value for row in rows],
        "producer_group": [row.producer_group for row in rows],
        "life": [row.life for row in rows],
        "check_times": [row.check_times for row in rows],
        "next_check_timestamp": [_optional_timestamp(row.next_check_timestamp_ms) for row in rows],
        "reason": [row.reason for row in rows],
        "op_timestamp": moments,
        "signature": [None] * len(rows),
        # All rows have one date, so that a commit is one file.
        "store_date": [moments[0].date() if moments else None] * len(rows),
    }
    return pa.table(columns, schema=OP.columns)


def _optional_timestamp(moment_ms: int | None) -> object:
    return None if moment_ms is None else timestamp(moment_ms)


def end_life(producer_group: str, life: int, config: Config) -> int | None:
    """Return the life that an end of a group names: a signed claim counts in its own alone."""
    return life if producer_group in config.claim_keys else None


def end_table(  # noqa: PLR0913 - the columns that differ
    ends: Sequence[tuple[str, ClaimKind]],
    *,
    producer_group: str,
    now_ms: int,
    source: ClaimSource = ClaimSource.PRODUCER,
    reason: str | None = None,
    lives: Sequence[int] | None = None,
) -> pa.Table:
    """Return ends that one group claims at one time, as `op_table`; the queue is not set yet."""
    count = len(ends)
    shared = {
        "source": source.value,
        "producer_group": producer_group,
        "reason": reason,
        "op_timestamp": timestamp(now_ms),
        "store_date": timestamp(now_ms).date(),
    }
    by_row = {
        "transaction_id": [transaction_id for transaction_id, _ in ends],
        "ordinal": range(count),
        # These are texts; asking each for its value would take longer.
        "kind": [kind for _, kind in ends],
        **({} if lives is None else {"life": lives}),
    }
    columns = [
        pa.array(by_row[field.name], field.type)
        if field.name in by_row
        else _repeated(shared.get(field.name), field.type, count)
        for field in _FIELDS
    ]
    return pa.table(columns, schema=OP.columns)


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with one value in all rows."""
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def is_of_first_life(claims: pa.Table) -> pa.ChunkedArray:
    """Tell whether each end fits a transaction that was never resumed."""
    return pc.fill_null(pc.equal(claims["life"], 0), True)  # noqa: FBT003


def is_after(claims: pa.Table, places: pa.Table) -> pa.ChunkedArray:
    """Tell whether each claim comes after the place of its transaction; null where it has none.

    Args:
        claims: as CLAIMS.
        places: transaction_id, each once, op_version and ordinal.
    """
    value_set = places["transaction_id"].combine_chunks()
    row = pc.index_in(claims["transaction_id"], value_set=value_set)
    version, ordinal = (places[name].take(row) for name in ("op_version", "ordinal"))
    return pc.or_(
        pc.greater(claims["_commit_version"], version),
        pc.and_(
            pc.equal(claims["_commit_version"], version), pc.greater(claims["ordinal"], ordinal)
        ),
    )


def is_after_unknown(claims: pa.Table, unknown: pa.Table) -> Flags:
    """Tell whether each claim comes after one of an unknown key about the same transaction."""
    if not unknown.num_rows:
        return np.zeros(claims.num_rows, dtype=bool)
    places = in_order(
        unknown.rename_columns({"_commit_version": "op_version"}), "op_version", "ordinal"
    )
    ids = Groups.of(places["transaction_id"]).place
    places = only(places, first_of_each(ids, np.zeros_like(ids)))
    return flags(pc.fill_null(is_after(claims, places), False))  # noqa: FBT003


def claims_of_table(rows: pa.Table) -> list[Claim]:
    """Return rows of `OpLog.between` as claims."""
    versions = rows["_commit_version"].to_pylist()
    return [
        _claim(row, version)
        for row, version in zip(rows.select(list(CLAIM_COLUMNS)).to_pylist(), versions, strict=True)
    ]


def _claim(row: dict[str, Any], version: int) -> Claim:
    next_check = row["next_check_timestamp"]
    return Claim(
        transaction_id=str(row["transaction_id"]),
        kind=ClaimKind(str(row["kind"])),
        producer_group=str(row["producer_group"]),
        op_version=version,
        ordinal=int(row["ordinal"]),
        source=ClaimSource(str(row["source"])),
        life=row["life"],
        check_times=row["check_times"],
        next_check_timestamp_ms=None if next_check is None else milliseconds(next_check),
        reason=row["reason"],
        sequences=None if row["sequences"] is None else tuple(row["sequences"]),
    )


# --- keys of producer groups ----------------------------------------------------------------------


def unknown_keys(claims: pa.Table) -> dict[str, str]:
    """Tell of each transaction with claims of unknown keys why it cannot be decided."""
    columns = ["transaction_id", "producer_group", SIGNATURE]
    return {
        row["transaction_id"]: (
            f"a claim is signed by the key {row[SIGNATURE][:KEY_ID_BYTES].hex()} of group "
            f"{shown(row['producer_group'])}, which this process does not know"
        )
        for row in claims.select(columns).to_pylist()
    }


class ClaimKeys:
    """The keys of the producer groups whose claims are signed."""

    def __init__(self, by_group: Mapping[str, GroupKeys]) -> None:
        """Keep the keys by the stored name of their group."""
        self._by_group = by_group
        self._groups = pa.array(list(by_group), pa.string())

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str] | None = None) -> ClaimKeys:
        """Read the keys that the settings name from the variables that hold them.

        Raises: ConfigError if a variable is not set or holds a key that is too short.
        """
        variables = os.environ if environ is None else environ
        faults: list[str] = []
        by_group = {
            group: _keys_of(group, entry, variables, faults)
            for group, entry in config.claim_keys.items()
        }
        if faults:
            raise ConfigError(faults)
        return cls(by_group)

    def required(self) -> dict[str, list[str]]:
        """Return the keys of the groups whose unsigned claims do not count."""
        return {
            group: [key.decode() for key in keys.keys]
            for group, keys in self._by_group.items()
            if not keys.accepts_unsigned
        }

    def names(self) -> list[str]:
        """Name each key by what it signs, with its group and whether unsigned claims count."""
        return sorted(
            f"{group}/{_signature(key, group.encode()).hex()}/{keys.accepts_unsigned}"
            for group, keys in self._by_group.items()
            for key in keys.keys
        )

    def __bool__(self) -> bool:
        """Tell whether any group has keys."""
        return bool(self._by_group)

    def signed(self, rows: pa.Table, store_id: str) -> pa.Table:
        """Sign the claims, given as OP, whose group has a key, and return all.

        A signed claim counts once: in the store that it names, and in its life. An end that names
        no life is of the first one.
        """
        if not self._of_groups(rows):
            return rows
        rows = self._with_lives(rows)
        signatures = [
            None if keys is None else keys.signature(text)
            for keys, text, _ in self._each(rows, store_id)
        ]
        place, field = rows.schema.get_field_index(SIGNATURE), OP.columns.field(SIGNATURE)
        return rows.set_column(place, field, pa.array(signatures, field.type))

    def _with_lives(self, rows: pa.Table) -> pa.Table:
        is_signed = pc.is_in(rows["producer_group"], value_set=self._groups)
        is_signed_end = pc.and_(is_signed, pc.is_in(rows["kind"], value_set=ENDS))
        first = pc.if_else(is_signed_end, pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
        lives = pc.coalesce(rows["life"], first)
        return rows.set_column(rows.schema.get_field_index("life"), OP.columns.field("life"), lives)

    def judge(self, rows: pa.Table, store_id: str, *, warns: bool = False) -> Judged:
        """Part the claims: those that count, and those of keys that are not known.

        Claims that their group's keys have not signed are in neither.

        Args:
            rows: the columns of a signature and SIGNATURE.
            store_id: the id of the op log that they are in.
            warns: whether a warning counts those in neither.
        """
        if not self._of_groups(rows):
            return Judged(rows, rows.slice(0, 0))
        verdicts = pa.array(
            [
                _COUNTED if keys is None else keys.verdict(text, signature)
                for keys, text, signature in self._each(rows, store_id)
            ]
        )
        counted, unknown, forged = (
            rows.filter(pc.equal(verdicts, verdict)) for verdict in (_COUNTED, _UNKNOWN, _FORGED)
        )
        if warns:
            _warn_of(forged)
        return Judged(counted, unknown)

    def signing_id(self, group: str) -> str | None:
        """Return the id of the key that signs the claims of a group; None where none does."""
        keys = self._by_group.get(group)
        return None if keys is None else key_id(keys.keys[0]).hex()

    def required_ids(self) -> dict[str, list[str]]:
        """Return the ids of the keys of each group whose unsigned claims do not count."""
        return {
            group: [key_id(key).hex() for key in keys.keys]
            for group, keys in self._by_group.items()
            if not keys.accepts_unsigned
        }

    def _of_groups(self, rows: pa.Table) -> bool:
        """Tell whether any claim is of a group with keys; if not, nothing is computed."""
        return bool(self) and bool(
            pc.any(pc.is_in(rows["producer_group"], value_set=self._groups)).as_py()
        )

    def _each(
        self, rows: pa.Table, store_id: str
    ) -> Iterator[tuple[GroupKeys | None, bytes, bytes | None]]:
        """Yield of each claim its keys, the text that is signed, and its signature."""
        places = pc.index_in(rows["producer_group"], value_set=self._groups)
        keys = list(self._by_group.values())
        # Nothing is computed of claims in the name of other groups.
        texts = signed_texts(rows.filter(pc.is_valid(places)), store_id)
        for place, signature in zip(places.to_pylist(), rows[SIGNATURE].to_pylist(), strict=True):
            yield (None, b"", signature) if place is None else (keys[place], next(texts), signature)


def _keys_of(
    group: str, entry: str | Mapping[str, Any], variables: Mapping[str, str], faults: list[str]
) -> GroupKeys:
    settings = {VARIABLE: entry} if isinstance(entry, str) else entry
    variable = str(settings[VARIABLE])
    keys = tuple(key.encode() for key in variables.get(variable, "").split())
    if not keys:
        faults.append(f"claim_keys: {shown(group)} needs the variable {variable}; set it")
    elif min(map(len, keys)) < KEY_CHARACTERS_MIN:
        problem = f"a key in {variable} is shorter than {KEY_CHARACTERS_MIN} characters"
        faults.append(f"claim_keys: {shown(group)}: {problem}; make one by `openssl rand -hex 32`")
    return GroupKeys(keys, bool(settings.get(ACCEPT_UNSIGNED, False)))


def _warn_of(refused: pa.Table) -> None:
    if refused.num_rows:
        first = refused.slice(0, 1).select(["transaction_id", "producer_group"]).to_pylist()[0]
        logger.warning(
            "%d claims have no valid signature of their group and do not count; the first is "
            "about transaction %s in the name of group %s",
            refused.num_rows, shown(first["transaction_id"]), shown(first["producer_group"]),
        )  # fmt: skip


def required_keys(config: Config) -> dict[str, list[str]]:
    """Return `ClaimKeys.required` for the settings of a process. Raises: as `ClaimKeys.of`."""
    return ClaimKeys.of(config).required()


@dataclass(frozen=True, slots=True, repr=False)
class GroupKeys:
    """The keys of one producer group: the first one signs, each of them is believed."""

    keys: tuple[bytes, ...]
    accepts_unsigned: bool

    def signature(self, text: bytes) -> bytes:
        """Return the signature of a text by the first key."""
        return _signature(self.keys[0], text)

    def verdict(self, text: bytes, signature: bytes | None) -> int:
        """Tell whether one of the keys made this signature, another key did, or nobody."""
        if self.accepts_unsigned:
            return _COUNTED
        if signature is None or len(signature) != SIGNATURE_BYTES:
            return _FORGED
        for key in self.keys:
            if key_id(key) == signature[:KEY_ID_BYTES]:
                is_own = hmac.compare_digest(_signature(key, text), signature)
                return _COUNTED if is_own else _FORGED
        return _UNKNOWN


_COUNTED, _UNKNOWN, _FORGED = range(3)


def _signature(key: bytes, text: bytes) -> bytes:
    return key_id(key) + hmac.digest(key, text, "sha256")


@cache
def key_id(key: bytes) -> bytes:
    """Return what names a key and tells nothing of it."""
    return hashlib.sha256(b"txmq claim key\n" + key).digest()[:KEY_ID_BYTES]


def signed_texts(rows: pa.Table, store_id: str) -> Iterator[bytes]:
    """Yield what is signed of each claim: the store, its fields in order, times in microseconds."""
    plain = pa.table({name: _plain(rows[name]) for name in _SIGNED})
    for row in plain.to_pylist():
        yield json.dumps([store_id, *(_text(row[name]) for name in _SIGNED)]).encode()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turn times into numbers, and texts into bytes, which may be no UTF-8."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _text(value: object) -> object:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
