"""The settings of one consumer group."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """The settings of one consumer group; `Config.of_consumer_group` makes it."""

    max_reconsume_times: int
    consume_timeout_s: float


CONSUMER_GROUP_KEYS = tuple(spec.name for spec in fields(ConsumeSettings))
