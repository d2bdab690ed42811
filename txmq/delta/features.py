"""Which features of Delta's protocol delta-rs can write, and with which txmq can set marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

# As Delta's protocol names them; a test asks delta-rs for each.
WRITABLE_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)

# They ask something of files, of rows, of checkpoints or of clean-up. A commit with marks alone has
# none of these; a time in each commit (`inCommitTimestamp`) is written (decision 0057).
MARKABLE_FEATURES = WRITABLE_FEATURES | {
    "allowColumnDefaults",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
TIMES_IN_COMMITS = "delta.enableInCommitTimestamps"
# Row tracking asks for it in a commit that changes no row.
ROWS_STAY = {"delta.rowTracking.preserved": "true"}
# Before features had names, this version of writers stood for columns that count by themselves.
_WRITER_OF_IDENTITY_COLUMNS = 6

# Data files alone do not say which rows and columns such a table has, or its checkpoints are of
# another kind.
MORE_THAN_FILES = frozenset({"columnMapping", "deletionVectors", "v2Checkpoint"})


def unwritable_features(handle: DeltaTable) -> list[str]:
    """The features that the table demands and that delta-rs cannot write, sorted."""
    return sorted(_demanded(handle) - WRITABLE_FEATURES)


def unmarkable_features(handle: DeltaTable) -> list[str]:
    """The features that the table demands and that keep txmq from setting marks, sorted."""
    return sorted(_demanded(handle) - MARKABLE_FEATURES)


def _demanded(handle: DeltaTable) -> set[str]:
    protocol = handle.protocol()
    if protocol.min_writer_version == _WRITER_OF_IDENTITY_COLUMNS:
        return {"identityColumns"}
    return {*(protocol.writer_features or ()), *(protocol.reader_features or ())}


def features_beside_files(demanded: Iterable[str]) -> list[str]:
    """The features that keep txmq from reading and writing a table file by file, sorted."""
    return sorted(set(demanded) - (WRITABLE_FEATURES - MORE_THAN_FILES))
