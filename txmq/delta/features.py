"""Which features of Delta's protocol delta-rs can write."""

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


# Data files alone do not say which rows and columns such a table has, or its checkpoints are of
# another kind.
MORE_THAN_FILES = frozenset({"columnMapping", "deletionVectors", "v2Checkpoint"})


def unwritable_features(handle: DeltaTable) -> list[str]:
    """The features that the table demands and that delta-rs cannot write, sorted."""
    protocol = handle.protocol()
    demanded = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    return sorted(demanded - WRITABLE_FEATURES)


def features_beside_files(demanded: Iterable[str]) -> list[str]:
    """The features that keep txmq from reading and writing a table file by file, sorted."""
    return sorted(set(demanded) - (WRITABLE_FEATURES - MORE_THAN_FILES))
