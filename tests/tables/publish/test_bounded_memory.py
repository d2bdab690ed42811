"""What is held of bodies at once is bounded in bytes, however large messages are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.kit.builders import halves
from tests.kit.reading import bodies
from txmq.delta import reading
from txmq.delta.file_rows import FileRows
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish import engines as arrow_engine
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store

BODY_BYTES = 1 << 16
MESSAGES = 64


@pytest.fixture
def large(tmp_path: object) -> Store:
    """One half file with bodies of 4 MiB in all, and room for a quarter of them."""
    config = Config(publish_batch_bytes=1 << 20, publish_threads=1)
    return Store.create(f"{tmp_path}/store", config)


def send(store: Store) -> list[bytes]:
    contents = [bytes([number]) * BODY_BYTES for number in range(MESSAGES)]
    with TransactionProducer(store, producer_group="orders") as producer:
        transaction = producer.begin_transaction()
        for content in contents:
            transaction.send(Message("a", content))
        transaction.prepare()
        transaction.commit()
    return contents


def test_publish_batch_bytes_bounds_what_is_copied_at_once(
    large: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, sizes = send(large), []
    read = FileRows.batches_from

    def noted(table: FileRows, *arguments: object) -> object:
        for first, batch in read(table, *arguments):  # type: ignore[arg-type]
            if "body" in batch.schema.names:
                sizes.append(batch.nbytes)
            yield first, batch

    monkeypatch.setattr(FileRows, "batches_from", noted)
    Publisher(large).run_once()

    assert max(sizes) * arrow_engine.BATCHES_OF_A_TOPIC <= large.config.publish_batch_bytes * 1.1
    assert bodies(large, "a") == contents


def test_a_large_file_is_never_held_whole_to_compare_a_few_halves(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WHOLE_FILES_BYTES", 1)
    table = store.tables.table_at("half")
    sent = [Message("a", bytes([number]) * BODY_BYTES) for number in range(4)]
    table.writer.append(halves(1, sent), app_id="test", number=1)
    table.writer.append(
        pa.concat_tables([halves(1, sent), halves(2, sent)]), app_id="test", number=2
    )
    whole = FileRows._read_once

    def narrow(reader: FileRows, file: object, stored: list[str], *rest: object) -> pa.Table:
        assert "body" not in stored
        return whole(reader, file, stored, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FileRows, "_read_once", narrow)

    found = store.tables.half_log().halves_of([halves(1)["transaction_id"][0].as_py()])

    assert [half.found for half in found.values()] == [4]
    assert not any(half.conflicting for half in found.values())


def test_what_piled_up_behind_a_parked_topic_is_caught_up_step_by_step(store: Store) -> None:
    store = store.with_settings(store.config.replace(publish_batch_rows=10))
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group="orders") as producer:
        for number in range(100):
            with producer.begin_transaction() as transaction:
                transaction.send(Message("a", b"%03d" % number))
                transaction.prepare()
                transaction.commit()

    rounds = publisher._rounds()
    rounds._logs.refresh_claims()
    while rounds._settled.mark < rounds._op.table.version:
        rounds._settle(rounds._op.table.version)
    result = rounds._publish()

    assert result.topic_commits == 10
    assert bodies(store, "a") == [b"%03d" % number for number in range(100)]
