"""Another program removed facts: the publisher stops before it settles anything a second time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.reading import bodies
from tests.kit.sending import send_each
from txmq.errors import SourceRestoredError
from txmq.maintenance.compaction import compact
from txmq.maintenance.retention import Retention
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.ops.admin.doctor import Doctor
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.op import OpRow
from txmq.store.settled import SettledLog
from txmq.store.store import Store
from txmq.testing import ManualClock


def settled_of(store: Store, version: int | None = None) -> DeltaTable:
    return DeltaTable(str(Path(store.location, "settled")), version=version)


def published(store: Store, *texts: bytes) -> Publisher:
    publisher = Publisher(store)
    for text in texts:
        send_each(store, text)
        publisher.run_once()
    return publisher


def commit_again(store: Store) -> None:
    """What a check would claim that finds no fact."""
    (half,) = DeltaTable(f"{store.location}/half").to_pyarrow_table().slice(0, 1).to_pylist()
    claim = OpRow(
        half["transaction_id"], ClaimKind.COMMIT, half["producer_group"], ClaimSource.CHECK, 1
    )
    ClaimWriter(store.tables.op_log(), "check", 4).append([claim])


def place_of(row: dict[str, object]) -> tuple[object, ...]:
    return row["transaction_id"], row["op_version"], row["ordinal"]


def append_again(store: Store, version: int) -> None:
    """As docs/faults.md tells."""
    before, now = (settled_of(store, number).to_pyarrow_table() for number in (version, None))
    there = {*map(place_of, now.to_pylist())}
    missing = [row for row in before.to_pylist() if place_of(row) not in there]
    rows = pa.Table.from_pylist(missing, schema=before.schema)
    write_deltalake(str(Path(store.location, "settled")), rows, mode="append")


@pytest.mark.parametrize("how", ["delete", "restore", "overwrite"])
@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_nothing_is_published_twice_after_facts_were_removed(
    store: Store, how: str, *, is_new_publisher: bool
) -> None:
    publisher = published(store, b"1", b"2")
    table, whole = settled_of(store), settled_of(store).version()
    if how == "delete":
        table.delete()
    elif how == "restore":
        table.restore(1)
    else:
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="overwrite")
    commit_again(store)
    if is_new_publisher:
        settled_of(store).create_checkpoint()
        publisher = Publisher(store)

    with pytest.raises(SourceRestoredError, match="facts that another program removed in commit"):
        publisher.run_once()

    send_each(store, b"3")
    with pytest.raises(SourceRestoredError):
        publisher.run_once()
    findings = [each for each in Doctor(store).examine().findings if each.where == "settled"]
    assert [f"append them again from version {whole}" in each.problem for each in findings] == [
        True
    ]

    append_again(store, whole)
    publisher.run_once()

    assert bodies(store) == [b"1", b"2", b"3"]


def test_facts_that_were_settled_and_not_published_are_not_passed_over(store: Store) -> None:
    publisher = published(store, b"1")
    send_each(store, b"2")
    rounds = publisher._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    whole = settled_of(store).version()
    settled_of(store).delete()

    with pytest.raises(SourceRestoredError):
        Publisher(store).run_once()

    append_again(store, whole)
    Publisher(store).run_once()
    assert bodies(store) == [b"1", b"2"]


def test_facts_that_an_earlier_txmq_wrote_are_counted_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(SettledLog, "_facts_mark", lambda *_: {})
        published(store, b"1", b"2")
    published(store, b"3")
    first = settled_of(store).to_pyarrow_table()["transaction_id"][0].as_py()
    settled_of(store).delete(f"transaction_id = '{first}'")

    with pytest.raises(SourceRestoredError, match="lacks 1 facts"):
        Publisher(store).run_once()


def test_what_txmq_merges_and_retention_takes_is_no_loss(store: Store) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    for text in (b"1", b"2", b"3"):
        send_each(store, text)
        publisher.run_once()
    compact(store.tables.table_at("settled"), 1 << 27)
    settled_of(store).optimize.compact()
    send_each(store, b"4")
    publisher.run_once()
    clock.advance(86_400 * 400)
    Retention(store, clock).run()
    send_each(store, b"5")

    Publisher(store, clock=clock).run_once()

    assert b"5" in bodies(store)
