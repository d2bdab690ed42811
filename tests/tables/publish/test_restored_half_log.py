"""A half log that was restored alone from an older copy: what it lost is not dropped in silence."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from tests.kit.sending import GROUP, send_each
from txmq.errors import SourceRestoredError, StorageError
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store


def copied(store: Store, tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(store.location, "half"), tmp_path / "copy"))


def restore(store: Store, copy: Path) -> None:
    shutil.rmtree(Path(store.location, "half"))
    shutil.copytree(copy, Path(store.location, "half"))


@pytest.mark.parametrize("is_new_publisher", [False, True])
@pytest.mark.parametrize("sent_since", [0, 5])
def test_half_log_that_went_back_stops_the_publisher(
    store: Store, tmp_path: Path, sent_since: int, *, is_new_publisher: bool
) -> None:
    publisher = Publisher(store)
    send_each(store, b"1")
    publisher.run_once()
    copy = copied(store, tmp_path)
    send_each(store, b"2")
    publisher.run_once()
    send_each(store, b"3")
    restore(store, copy)
    send_each(store, *[b"since"] * sent_since)
    if is_new_publisher:
        publisher = Publisher(store)

    with pytest.raises(SourceRestoredError, match=r"half: (ends at|has another commit)"):
        publisher.run_once()

    assert bodies(store) == [b"1", b"2"]


def test_half_log_as_it_was_goes_on(store: Store, tmp_path: Path) -> None:
    send_each(store, b"1")
    Publisher(store).run_once()
    copy = copied(store, tmp_path)
    restore(store, copy)
    send_each(store, b"2")

    Publisher(store).run_once()

    assert bodies(store) == [b"1", b"2"]


NOW = datetime.now(UTC)


def test_try_with_a_key_whose_messages_were_lost_is_told(store: Store, tmp_path: Path) -> None:
    """It cannot be compared with the first try, so its caller may not hear that it is published."""
    copy = copied(store, tmp_path)
    tell(store, b"first")
    Publisher(store).run_once()
    restore(store, copy)

    with pytest.raises(StorageError, match="retention has not taken them"):
        tell(store, b"second")


def tell(store: Store, body: bytes) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction(idempotency_key="job-1", key_timestamp=NOW)
        transaction.send(Message("order-paid", body))
        transaction.prepare()
        transaction.commit()
