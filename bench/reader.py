"""A reader of a table's newest version; "visible" is what it sees."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

WAIT_S = 600.0


class Reader:
    """Polls one table; both sides of a comparison are read by the same one."""

    def __init__(self, location: Path, interval_s: float = 0.001) -> None:
        """The table may not be there yet."""
        self._location, self._interval_s = location, interval_s
        self._handle: DeltaTable | None = None
        self._seen = -1

    def wait_for_value(self, column: str, value: str) -> float:
        """The moment (perf_counter) at which a row with this value was there.

        Versions that an earlier call saw are not looked at again.
        """
        deadline_s = time.perf_counter() + WAIT_S
        while time.perf_counter() < deadline_s:
            newest, moment_s = self._newest(), time.perf_counter()
            fresh = range(self._seen + 1, newest + 1)
            self._seen = max(self._seen, newest)
            if any(self._adds(number, column, value) for number in fresh):
                return moment_s
            time.sleep(self._interval_s)
        raise TimeoutError(value)

    def wait_for_rows(self, count: int) -> float:
        """The moment (perf_counter) at which `count` rows were there."""
        seen = -2
        deadline_s = time.perf_counter() + WAIT_S
        while time.perf_counter() < deadline_s:
            newest, moment_s = self._version(), time.perf_counter()
            if newest != seen and self.rows() >= count:
                return moment_s
            seen = newest
            time.sleep(self._interval_s)
        message = f"{self.rows():,} of {count:,} rows"
        raise TimeoutError(message)

    def rows(self) -> int:
        """How many rows the version seen last has."""
        if self._handle is None:
            return 0
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        return int(pc.sum(actions["num_records"]).as_py() or 0)

    def _newest(self) -> int:
        """The newest version; once one was seen, by the names of the commit files after it.

        A look by delta-rs takes milliseconds, which would count as the writer's.
        """
        if self._seen < 0:
            return self._version()
        newest = self._seen
        while self._log(newest + 1).exists():
            newest += 1
        return newest

    def _log(self, version: int) -> Path:
        return self._location / "_delta_log" / f"{version:020d}.json"

    def _version(self) -> int:
        """The newest version, -1 where there is none."""
        try:
            if self._handle is None:
                self._handle = DeltaTable(str(self._location))
            else:
                self._handle.update_incremental()
        except TableNotFoundError:
            return -1
        except DeltaError:
            # delta-rs can see a gap while others commit.
            self._handle = None
            return self._version()
        return int(self._handle.version())

    def _adds(self, version: int, column: str, value: str) -> bool:
        lines = self._log(version).read_text(encoding="utf-8").splitlines()
        actions = [json.loads(line) for line in lines]
        paths = [action["add"]["path"] for action in actions if "add" in action]
        return any(
            value in pq.read_table(self._location / path, columns=[column])[column].to_pylist()
            for path in paths
        )
