"""What a store shows, read with plain delta-rs and not through the code under test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult

if TYPE_CHECKING:
    from txmq.delta.folder import TableFolder
    from txmq.store.store import Store

DEADLINE_S = 60.0
LOOK_INTERVAL_S = 0.005
LONGEST_PAUSE_S = 0.1


def delta_rs(table: TableFolder) -> DeltaTable:
    """The same table as delta-rs opens it, at its newest version."""
    return DeltaTable(table.location)


def rows_of(location: str) -> list[dict[str, Any]]:
    """All rows of a Delta table; none where it is not there."""
    if not DeltaTable.is_deltatable(location):
        return []
    return pa.table(DeltaTable(location).to_pyarrow_table()).to_pylist()


def log_rows(store: Store, log: str) -> list[dict[str, Any]]:
    return rows_of(f"{store.location}/{log}")


def topic_rows(store: Store, topic: str = "order-paid") -> list[dict[str, Any]]:
    """The messages of a topic in the order of their queues."""
    rows = rows_of(f"{store.location}/topics/{topic}")
    return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))


def bodies(store: Store, topic: str = "order-paid") -> list[bytes]:
    return sorted(row["body"] for row in topic_rows(store, topic))


def commits(store: Store, path: str) -> int:
    """How many commits a table has, its creation left out."""
    return int(DeltaTable(f"{store.location}/{path}").version())


def offsets(rows: list[dict[str, Any]]) -> dict[int, list[int]]:
    """The offsets of each queue, sorted."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["queue_id"], []).append(row["queue_offset"])
    return {queue: sorted(numbers) for queue, numbers in found.items()}


def are_gap_free(rows: list[dict[str, Any]]) -> bool:
    return all(numbers == list(range(len(numbers))) for numbers in offsets(rows).values())


def publish(store: Store) -> PublishResult:
    """All that is there, by a publisher that knows nothing from before."""
    return Publisher(store).run_once()


def wait_until(
    condition: Callable[[], bool], deadline_s: float = DEADLINE_S, what: str = "the condition"
) -> None:
    """Return when it holds, or fail; what it waits for gets the processor most of the time."""
    began_s = look_s = time.monotonic()
    while not condition():
        now_s = time.monotonic()
        assert now_s < began_s + deadline_s, f"waited {deadline_s} s in vain: {what}"
        time.sleep(min(max(LOOK_INTERVAL_S, 4 * (now_s - look_s)), LONGEST_PAUSE_S))
        look_s = time.monotonic()
