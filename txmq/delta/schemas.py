"""What a kind of table is made of: columns, partitions, properties, the version of its schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# Raised where an earlier txmq would do harm beside this one; `txmq upgrade` takes a table there
# (decision 0059).
SCHEMA_VERSION = 2
SCHEMA_VERSION_PROPERTY = "txmq.schema_version"
# Files that were written up to this time and are in no commit may be gone (decision 0029).
SWEPT_PROPERTY = "txmq.swept_ms"
# With it Delta forgets old marks, which all tables of txmq rest on.
MARKS_PROPERTY = "delta.setTransactionRetentionDuration"
_INTERVAL = re.compile(r"(?:interval\s+)?(\d{1,9})\s+(second|minute|hour|day|week)s?", re.ASCII)
_UNIT_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
            "week": 604_800_000}  # fmt: skip


def interval_ms(text: str) -> int | None:
    """Read the interval of a property, such as `interval 7 days`; None if it is none."""
    interval = _INTERVAL.fullmatch(text.strip().lower())
    return int(interval[1]) * _UNIT_MS[interval[2]] if interval else None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns, partition columns and properties of a kind of table."""

    name: str
    columns: pa.Schema
    partition_by: tuple[str, ...] = ()
    change_data_feed: bool = False
    # Statistics on bodies cost time and never exclude a file.
    statistics_columns: tuple[str, ...] = ()
    # A store has many tables of this kind, so errors name them by their place.
    is_one_of_many: bool = False

    def name_in_errors(self, location: str) -> str:
        """Return what an error calls a table: `half`, `topics/orders`, `state/group_billing`."""
        return "/".join(location.rsplit("/", 2)[-2:]) if self.is_one_of_many else self.name

    def properties(self, checkpoint_interval: int) -> dict[str, str]:
        """Return Delta's table properties; they leave log clean-up to maintenance."""
        values = {
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": str(checkpoint_interval),
            SCHEMA_VERSION_PROPERTY: str(SCHEMA_VERSION),
        }
        if self.change_data_feed:
            values["delta.enableChangeDataFeed"] = "true"
        if self.statistics_columns:
            values["delta.dataSkippingStatsColumns"] = ",".join(self.statistics_columns)
        return values
