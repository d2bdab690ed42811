"""How a consumer group reads, and where a new one begins."""

from __future__ import annotations

import enum


class ConsumeMode(enum.StrEnum):
    """Whether the members of a group share the messages, or each member reads all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(enum.Enum):
    """Where a new group begins (R106); a group that has offsets goes on at its offsets."""

    FIRST_OFFSET = "first"
    LAST_OFFSET = "last"
    TIMESTAMP = "timestamp"
