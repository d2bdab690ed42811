"""What ails one table of a store. Read-only."""

from __future__ import annotations

from collections.abc import Iterator

from txmq.admin.findings import Finding, cure_of, restore_of
from txmq.delta.log import log_files
from txmq.delta.rooted import inside
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.delta.storage import Table
from txmq.errors import TxmqError

# Maintenance and writers both make checkpoints; a log without them is read ever more slowly.
CHECKPOINTS_MISSED = 10
UPGRADE = "bring all processes of the older txmq to this one, then txmq upgrade LOCATION --apply"
# What txmq sets at the start, and why it must stay.
_PROPERTIES = {
    "delta.enableExpiredLogCleanup": "other programs may remove commits that readers need",
    "delta.enableChangeDataFeed": "streams of Spark do not see its commits",
}


def findings_of_table(path: str, table: Table, checkpoint_interval: int) -> Iterator[Finding]:
    """What needs a hand; `checkpoint_interval` is the one of the store."""
    try:
        files = table.files()
        properties = table.properties()
        missed = log_files(table).since_checkpoint(table.version)
    except TxmqError as error:
        yield Finding(path, str(error), cure_of(error, restore_of(path)))
        return
    version = int(properties[SCHEMA_VERSION_PROPERTY])
    if version < SCHEMA_VERSION:
        problem = f"has schema version {version}, this txmq makes {SCHEMA_VERSION}"
        yield Finding(path, f"{problem}: an older txmq may write beside this one", UPGRADE)
    for file in files:
        try:
            inside(file.path)
        except TxmqError as error:
            step = "find out who wrote this commit; restore the table to the version before it"
            yield Finding(path, str(error), step)
    for name, value in table.schema.properties(checkpoint_interval).items():
        if name in _PROPERTIES and properties.get(name) != value:
            problem = f"its property {name} is {properties.get(name)!r}: {_PROPERTIES[name]}"
            yield Finding(path, problem, f"set it: SET TBLPROPERTIES ('{name}' = '{value}')")
    if missed > CHECKPOINTS_MISSED * checkpoint_interval:
        problem = f"has had no checkpoint for {missed:,} commits, one is due each"
        step = "run a broker or txmq maintenance, and look at why it fails"
        yield Finding(path, f"{problem} {checkpoint_interval:,}", step)
