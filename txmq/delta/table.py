"""One of txmq's own Delta tables, made of parts that do one thing each.

- `table.folder` (`folder`): looks up, reads and writes files by their names.
- `table.log` (`table_log`): pins a version, follows the log; its marks; is there news?
- `table.files` (`table_log`): chooses live files by their statistics.
- `table.rows` (`file_rows`): reads data files: whole, in batches, by row groups.
- `table.search` (`reading`): finds rows by the values of a column, beside damaged files.
- `table.changes` (`reading`): reads new rows commit by commit.
- `table.writer` (`table_writer`): create, append once, compare-and-swap, rewrite, remove.

Delta's kernels have the same side by side: log store, snapshot, scan, table changes, transaction.
Each part knows those above it and none below. A function asks for the part that it needs, and for
a `Table` where it needs several. Nothing reaches into a part from another file.

Below them: `actions` (what a commit says), `commit_writer` (puts a commit against other writers),
`replay` and `snapshot` (a log read into a version), `checkpoints`, `parquet` and `files` (data
files), `failures` (errors, and what is tried again). `log_files` cleans logs. `pinned` is a table
of a user, which delta-rs writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from txmq.delta.file_rows import FileRows
from txmq.delta.folder import TableFolder
from txmq.delta.reading import RowSearch, TableChanges
from txmq.delta.schemas import TableSchema
from txmq.delta.table_log import LiveFiles, TableLog
from txmq.delta.table_writer import TableWriter
from txmq.delta.until_committed import COMMIT_ATTEMPTS


class Table:
    """A Delta table of txmq at one location.

    Not safe for several threads: each service and each committing thread holds its own.

    Attributes:
        name: what errors call the table.
    """

    def __init__(
        self,
        location: str,
        schema: TableSchema,
        storage_options: Mapping[str, str] | None = None,
        *,
        commit_attempts: int = COMMIT_ATTEMPTS,
    ) -> None:
        """Open nothing yet; the first use does."""
        self.name, self.location, self.schema = schema.name_in_errors(location), location, schema
        self.folder = TableFolder(self.name, location, storage_options)
        self.log = TableLog(self.folder, schema)
        self.files = LiveFiles(self.log, schema)
        self.rows = FileRows(self.folder, self.log, schema)
        self.search = RowSearch(self.name, self.log, self.files, self.rows)
        self.changes = TableChanges(self.folder, self.log, self.files, self.rows, schema)
        self.writer = TableWriter(
            self.folder, schema, self.log, self.files, self.rows.small_files, commit_attempts
        )

    def exists(self) -> bool:
        """Tell whether there is a Delta table at the location. Raises: StorageError."""
        return self.log.exists()

    def refresh(self) -> Self:
        """Pin the newest version; returns the object itself. Raises: StorageError."""
        self.log.refresh()
        return self

    def reopen(self) -> Self:
        """Do as `refresh`, by the whole log. Raises: StorageError."""
        self.log.reopen()
        return self

    @property
    def version(self) -> int:
        """The version this object is pinned to."""
        return self.log.version
