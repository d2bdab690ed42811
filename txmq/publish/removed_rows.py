"""Put back rows of half and settled that another program removed: DELETE, UPDATE, RESTORE.

Delta keeps the files that a commit removed until they are vacuumed, so what they held can be
compared with what is there now. A fact that is gone would let its transaction be settled anew; a
half that is gone would let its COMMIT have no effect. Log clean-up keeps a removal, and its files,
until a publisher has looked at it (`maintenance.service`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import REWRITE_MARK, commit_path
from txmq.delta.files import DataFile
from txmq.delta.log_files import commit_fingerprint
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, SourceRestoredError, StorageError
from txmq.ground.columns import sound_rows
from txmq.message.ids import is_transaction_id
from txmq.message.lifecycle import FINAL_STATES
from txmq.store.known import Forgotten
from txmq.store.logs import Logs
from txmq.store.schemas import SETTLED
from txmq.store.settled import NOTHING, HalfSeen, facts_among

if TYPE_CHECKING:
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

# What tells the rows of a transaction from each other.
KEY_OF_HALF, KEY_OF_FACT = ("sequence",), ("op_version", "ordinal", "state", "life")
# A commit of the half log that puts rows back has it; two publishers do not both put them back.
PUT_BACK_MARK = "txmq-put-back"
_FINAL = pa.array([state.value for state in FINAL_STATES])
_FACT_COLUMNS = ("transaction_id", "state", "op_version")


class RemovedRows:
    """Looks for removals by other programs, as one publisher. Not safe for several threads."""

    def __init__(self, store: Store, logs: Logs) -> None:
        """Open nothing."""
        self._store = store
        self._half, self._op, self._settled = logs.half.table, logs.op.table, logs.settled
        self._forgotten = Forgotten(store)
        # Up to which version of half this publisher has looked, and which lost rows for good.
        self._looked = self._lost = NOTHING

    # --- settled --------------------------------------------------------------------------------

    def put_back_facts(self) -> None:
        """Append the facts that are gone; the settled log may then be believed.

        Commits: 0 if nobody removed any; else one for each piece of them and one at the end. A
        retry after a crash appends what is missing then.

        Raises: SourceRestoredError where a file that held some is gone too; StorageError.
        """
        settled = self._settled
        try:
            if not settled.is_looked_at:
                settled.put_back(SETTLED.columns.empty_table(), settled.whole_through)
            for version in settled.removals():
                self._put_back_facts(version)
        except CommitRefusedError:
            # Another publisher puts them back; `check_whole` tells if it does not.
            settled.table.refresh()
        except SourceRestoredError as error:
            problem, cure = str(error).partition(": ")[2], "this file, or the store from a backup"
            raise SourceRestoredError("settled", f"{problem}: restore {cure}") from error

    def _put_back_facts(self, version: int) -> None:
        settled, count = self._settled, 0
        for file in settled.table.changes.removed_by(version):
            for rows in _rows_of(settled.table, file, version):
                facts = self._missing(settled.table, facts_among(rows), KEY_OF_FACT)
                count += facts.num_rows
                if facts.num_rows:
                    settled.put_back(facts, settled.whole_through)
        settled.put_back(SETTLED.columns.empty_table(), version)
        _tell("settled", version, count)

    # --- half -----------------------------------------------------------------------------------

    def has_half_removals(self) -> bool:
        """Tell whether the pinned half log has removals that this publisher has not looked at."""
        return bool(self._half_removals())

    def _half_removals(self) -> list[int]:
        seen = self._settled.half_seen.version
        return self._half.log.removals_after(max(seen, self._looked))

    def put_back_halves(self, low: int, waiting: Collection[str]) -> None:
        """Append the halves that are gone and needed; the half log is then pinned behind them.

        Where a file that held some is gone too, those of others are put back, and `half_seen`
        tells.

        Args:
            low: facts up to this op version are published, so that their halves are not needed.
            waiting: transactions that are set aside, whose halves are needed all the same.

        Commits: 0 if nobody removed any; else one for each piece of them. A retry after a crash
        appends what is missing then.

        Raises: StorageError.
        """
        self._lost = max(self._lost, self._settled.half_seen.lost)
        while versions := self._half_removals():
            if self._has_been_looked_at(versions[0]):
                continue
            try:
                self._put_back_halves(versions[0], low, waiting)
            except CommitRefusedError:
                # Another publisher puts them back; what it has not, is missing still.
                self._half.refresh()
                continue
            self._looked = versions[0]
            self._half.refresh()

    def _has_been_looked_at(self, version: int) -> bool:
        """Tell whether another publisher has put back what this commit of half removed.

        An erasure may have gone over half behind it. So settled is read after half was pinned, and
        the commit that puts rows back is refused if files of half were rewritten since.
        """
        settled = self._store.tables.settled_log(self._op.log.table_id)
        settled.table.refresh()
        seen = settled.half_seen
        if seen.version < version:
            return False
        self._looked, self._lost = seen.version, max(self._lost, seen.lost)
        self._half.refresh()
        return True

    def half_seen(self) -> HalfSeen:
        """Return what the next settled commit says of the half log. Raises: as `check_half`."""
        self.check_half()
        half = self._half
        return HalfSeen(half.version, commit_fingerprint(half, half.version), self._lost)

    def check_half(self) -> None:
        """Raise StorageError if the half log was opened anew since, behind one more removal."""
        for version in self._half_removals():
            problem = f"another program removed rows in {commit_path(version)}"
            raise StorageError("half", f"{problem}; the next round puts them back")

    def _put_back_halves(self, version: int, low: int, waiting: Collection[str]) -> None:
        count = 0
        for file in self._half.changes.removed_by(version):
            try:
                for rows in _rows_of(self._half, file, version):
                    needed = self._needed(rows, low, waiting)
                    halves = self._missing(self._half, needed, KEY_OF_HALF)
                    count += halves.num_rows
                    if halves.num_rows:
                        rewrites = {REWRITE_MARK: self._half.log.mark(REWRITE_MARK) or 0}
                        self._half.writer.swap(halves, {PUT_BACK_MARK: version, **rewrites})
            except SourceRestoredError as error:
                logger.error("%s; its transactions have no effect", error)  # noqa: TRY400 - its text
                self._lost = version
        _tell("half", version, count)

    def _needed(self, rows: pa.Table, low: int, waiting: Collection[str]) -> pa.Table:
        """Return the rows of transactions that are not ended, or not published."""
        ids = pc.unique(rows["transaction_id"])
        facts = self._settled.facts_of(ids).select(_FACT_COLUMNS)
        is_over = pc.and_(
            pc.is_in(facts["state"], value_set=_FINAL), pc.less_equal(facts["op_version"], low)
        )
        over = facts.filter(is_over)["transaction_id"]
        is_waiting = pc.is_in(over, value_set=pa.array(list(waiting), pa.string()))
        over = over.filter(pc.invert(is_waiting))
        return rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=over)))

    # --- both -----------------------------------------------------------------------------------

    def _missing(self, table: Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
        """Return the rows that the table has not, of transactions that retention has not taken."""
        names = pc.unique(rows["transaction_id"]).to_pylist()
        ids = [name for name in names if is_transaction_id(name)]
        kept = pa.array({*ids} - self._taken(ids), pa.string())
        rows = rows.filter(pc.is_in(rows["transaction_id"], value_set=kept))
        there = table.search.rows_of("transaction_id", kept, ("transaction_id", *key))
        if table is self._settled.table:
            there = facts_among(there)
        is_there = pc.is_in(_keys(rows, key), value_set=_keys(there, key))
        return rows.filter(pc.invert(is_there))

    def _taken(self, ids: Collection[str]) -> set[str]:
        """Find the transactions that retention may have taken and of which nothing is left."""
        forgotten = self._forgotten.among(ids)
        if not forgotten:
            return forgotten
        column, values = ("transaction_id",), pa.array(forgotten, pa.string())
        for table in (self._half, self._op.refresh(), self._settled.table):
            rows = table.search.rows_of("transaction_id", values, column)
            forgotten = forgotten - set(rows["transaction_id"].to_pylist())
        return forgotten


def _rows_of(table: Table, file: DataFile, version: int) -> Iterator[pa.Table]:
    """Yield the rows of a file that a commit removed, in pieces; memory holds one.

    Raises: SourceRestoredError if the file is gone or damaged; StorageError if not readable now.
    """
    problem = f"another program removed rows in {commit_path(version)}, and {file.path}"
    if None in file.partition.values():
        problem = f"{problem}, which held them, is named without its partition"
        raise SourceRestoredError(table.name, problem)
    try:
        for rows in table.rows.pieces([file], table.schema.columns.names):
            yield sound_rows(rows, ("transaction_id", "sequence"))
    except StorageError as error:
        if not (_is_damage(error.__cause__) or table.folder.lacks(file.path)):
            raise
        problem = f"{problem}, which held them, is gone or damaged"
        raise SourceRestoredError(table.name, problem) from error


def _is_damage(cause: BaseException | None) -> bool:
    """Tell whether a file was read and is no Parquet; errors of a system have a number."""
    is_parsing = isinstance(cause, OSError) and cause.errno is None and not cause.filename
    return isinstance(cause, pa.ArrowInvalid) or is_parsing


def _keys(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    columns = [rows["transaction_id"], *(rows[name].cast(pa.string()) for name in key)]
    return pc.fill_null(pc.binary_join_element_wise(*columns, "/"), "")


def _tell(table: str, version: int, count: int) -> None:
    if count:
        text = "%s: another program removed rows in %s; %d of them were needed and are put back"
        logger.error(text, table, commit_path(version), count)
