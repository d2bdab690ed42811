"""The check settings of one producer group."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """The check settings of one producer group; `Config.of_group` makes it."""

    transaction_timeout_s: float
    transaction_check_interval_s: float
    transaction_check_max: int
    listener_timeout_s: float
    check_threads: int
    check_queue_size: int

    @property
    def checks_s(self) -> float:
        """The time from a half to its DISCARD, if every check is answered UNKNOWN (R74)."""
        return self.transaction_timeout_s + (
            self.transaction_check_max * self.transaction_check_interval_s
        )


GROUP_KEYS = tuple(spec.name for spec in fields(CheckSettings))
