"""What a message takes on the disk and an open transaction in memory, for docs/sizing.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Outcome
from bench.retained import OPEN, asked_in_a_process, store_with
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

THREADS = 8
TABLES = ("half", "op", "settled", f"topics/{TOPIC}")
MANY_OPEN = 100 * OPEN
ROUNDS_OF_MAINTENANCE = 2


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Bytes of a message beside its two bodies, by the way it was sent; memory of a recheck."""
    outcomes = [_stored(name, sizes, fresh_folder(folder, "stored")) for name in WAYS]
    return [*outcomes, _of_open(folder)]


def _stored(way: str, sizes: Sizes, folder: Path) -> Outcome:
    """Publish so many messages, let maintenance merge the files, and look what is there."""
    count, body_bytes = sizes.one_row_commits, sizes.body_bytes
    store = Store.create(folder / "store")
    with TransactionProducer(store, producer_group=GROUP) as producer:
        WAYS[way](producer, count, body_bytes)
    Publisher(store).run_once()
    before = _tables(store)
    maintenance = Maintenance(store)
    for _ in range(ROUNDS_OF_MAINTENANCE):
        maintenance.run_once()
    after = _tables(store)
    live_bytes = sum(table["live_bytes"] for table in after.values())
    facts = {"messages": count, "body_bytes": body_bytes, "sent": before, "merged": after}
    # The body lies in half and in the topic.
    bytes_each = live_bytes / count - 2 * body_bytes
    return Outcome("sizing", f"a message beside its two bodies, {way}", "bytes", [bytes_each],
                   facts=facts)  # fmt: skip


def _tables(store: Store) -> dict[str, dict[str, int]]:
    """What the newest version of each table names, and what lies on the disk."""
    found: dict[str, dict[str, int]] = {}
    for path in TABLES:
        live = store.tables.table_at(path).refresh().files.all()
        files = [each for each in Path(store.location, path).rglob("*") if each.is_file()]
        found[path] = {
            "live_files": len(live), "live_bytes": sum(file.size_bytes for file in live),
            "files": len(files), "bytes": sum(each.stat().st_size for each in files),
        }  # fmt: skip
    return found


def _alone(producer: TransactionProducer, count: int, body_bytes: int) -> None:
    for _ in range(count):
        _together(producer, 1, body_bytes)


def _from_threads(producer: TransactionProducer, count: int, body_bytes: int) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: _together(producer, 1, body_bytes), range(count)))


def _together(producer: TransactionProducer, count: int, body_bytes: int) -> None:
    with producer.begin_transaction() as transaction:
        for _ in range(count):
            transaction.send(Message(TOPIC, random_body(body_bytes)))
        transaction.prepare()
        transaction.commit()


WAYS: Mapping[str, Callable[[TransactionProducer, int, int], None]] = {
    "one transaction each, one after the other": _alone,
    f"one transaction each, {THREADS} threads": _from_threads,
    "all in one transaction": _together,
}


def _of_open(folder: Path) -> Outcome:
    """Peak memory of a recheck for each further open transaction."""
    peaks: dict[int, Any] = {}
    for still_open in (OPEN, MANY_OPEN):
        location = store_with(1_000, folder / f"open-{still_open}", still_open)
        # The first one makes the set of the open ones.
        asked_in_a_process("recheck", location)
        peaks[still_open] = asked_in_a_process("recheck", location)
    kib = (peaks[MANY_OPEN][1] - peaks[OPEN][1]) * 1024 / (MANY_OPEN - OPEN)
    facts = {"s_and_mib": {str(count): sample for count, sample in peaks.items()}}
    return Outcome("sizing", f"a recheck, each further of {MANY_OPEN:,} open transactions", "KiB",
                   [kib], facts=facts)  # fmt: skip
