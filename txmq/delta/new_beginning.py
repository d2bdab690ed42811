"""Begins a table anew behind a log or files that cannot be read: a commit and its checkpoint.

The versions go on, so a writer that has seen the table before loses its next commit to this one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from txmq.delta.actions import LOG_FOLDER, NewCommit, commit_path
from txmq.delta.checkpoint_file import write_first_checkpoint
from txmq.delta.commit_limits import added_file
from txmq.delta.commit_writer import new_token
from txmq.delta.failures import translated
from txmq.delta.replay import LogNames
from txmq.delta.storage import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.delta.schemas import TableSchema


def newest_version(table: Table) -> int:
    """The newest version that the log names, whether or not it can be read."""
    with translated(table.name):
        return LogNames.of(table.log_names()).newest


def begin_anew(
    table: Table, rows: pa.Table, marks: Mapping[str, int], after: int, checkpoint_interval: int
) -> bool:
    """Let the table hold these rows alone; whether it does, for a writer may have been faster.

    A call that was killed leaves a log that this call can begin anew again, or that can be read.

    Args:
        table: the table that cannot be read.
        rows, marks: what it holds from then on; marks must be above those that it had.
        after: the newest version when it could not be read.
        checkpoint_interval: as for a new table.

    Commits: 1. Raises: StorageError.
    """
    definition = _definition(table.schema, checkpoint_interval)
    files = [added_file(file) for file in table.new_files(rows)]
    commit = NewCommit(files, (), marks, new_token()).content(time.time_ns() // 1_000_000)
    # The line about the commit is the first one.
    info, _, actions = commit.partition(b"\n")
    content = b"\n".join([info, definition, actions])
    with translated(table.name):
        if not table.objects.put_new(commit_path(after + 1), content):
            return False
        write_first_checkpoint(table, after + 1, content)
        _forget(table, after)
    table.reopen()
    return True


def _definition(schema: TableSchema, checkpoint_interval: int) -> bytes:
    """The actions that define a table, as a new one has them."""
    with TemporaryDirectory(prefix="txmq-") as folder:
        model = Table(str(Path(folder) / "table"), schema)
        model.create(checkpoint_interval)
        lines = (model.commit_bytes(0) or b"").splitlines()
    return b"\n".join(line for line in lines if {"protocol", "metaData"} & json.loads(line).keys())


def _forget(table: Table, through: int) -> None:
    """Remove what readers need no more: a copy of the log would have it in it."""
    for name in table.log_names():
        if name[:20].isdecimal() and int(name[:20]) <= through:
            table.objects.delete(f"{LOG_FOLDER}/{name}")
