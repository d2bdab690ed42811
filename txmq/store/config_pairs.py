"""What settings that are right one by one may contradict together; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.message.delay_levels import level_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txmq.store.check_settings import CheckSettings


def faults_of_levels(levels: str) -> list[str]:
    """What is wrong with the text of `message_delay_level`."""
    try:
        level_seconds(levels)
    except ValueError as error:
        return [f"message_delay_level {error}"]
    return []


def faults_of_sizes(message_bytes: int, transaction_bytes: int) -> list[str]:
    """A transaction must have room for the largest message."""
    if transaction_bytes >= message_bytes:
        return []
    problem = f"max_transaction_size_bytes ({transaction_bytes:,}) is below "
    return [f"{problem}max_message_size_bytes ({message_bytes:,})"]


def faults_of_checks(
    groups: Mapping[str, CheckSettings], reserved_h: float, lease_s: float
) -> list[str]:
    """Contradictions of check settings, by producer group; those of the store are under ""."""
    of_store = _faults_of_group(groups[""], reserved_h * 3600, lease_s)
    faults = list(of_store)
    for name, settings in groups.items():
        # A fault that the group inherits from the store is in the list already.
        of_group = _faults_of_group(settings, reserved_h * 3600, lease_s)
        faults += [f"groups: {name}: {fault}" for fault in of_group if fault not in of_store]
    return faults


def _faults_of_group(settings: CheckSettings, reserved_s: float, lease_s: float) -> list[str]:
    faults = []
    if settings.checks_s > reserved_s:
        faults.append(
            f"transaction_timeout_s and transaction_check_max x transaction_check_interval_s "
            f"are {settings.checks_s:,.0f} s, longer than file_reserved_time_h "
            f"({reserved_s:,.0f} s)"
        )
    if lease_s <= settings.listener_timeout_s:
        faults.append(
            f"check_lease_s ({lease_s:g}) must be above "
            f"listener_timeout_s ({settings.listener_timeout_s:g})"
        )
    return faults
