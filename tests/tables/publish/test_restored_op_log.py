"""An op log that was restored to an older version stops the publisher, whatever came after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.sending import send_each
from txmq.errors import SourceRestoredError
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

GROUP = "orders"


def send(store: Store, count: int) -> None:
    send_each(store, *(b"body-%d" % number for number in range(count)))


def messages(store: Store) -> int:
    return sum(file.num_records for file in store.tables.table_at("topics/order-paid").files.all())


@pytest.fixture
def restored(store: Store, tmp_path: Path) -> Store:
    """Ten claims were settled and published; the op log then lost the last five."""
    send(store, 5)
    backup = tmp_path / "backup"
    shutil.copytree(f"{store.location}/op", backup)
    send(store, 5)
    Publisher(store).run_once()
    shutil.rmtree(f"{store.location}/op")
    shutil.copytree(backup, f"{store.location}/op")
    return store


def test_shorter_op_log_stops_the_publisher(restored: Store) -> None:
    with pytest.raises(SourceRestoredError, match="restore the topics"):
        Publisher(restored).run_once()


def test_claims_that_were_appended_since_do_not_hide_it(restored: Store) -> None:
    send(restored, 20)
    with pytest.raises(SourceRestoredError, match="has another commit"):
        Publisher(restored).run_once()
    assert messages(restored) == 10


def test_it_is_seen_also_where_the_low_water_mark_is_behind(store: Store, tmp_path: Path) -> None:
    """The low-water mark is written late: what was settled after it tells by itself."""
    send(store, 5)
    shutil.copytree(f"{store.location}/op", tmp_path / "op")
    Publisher(store).run_once()
    shutil.copytree(f"{store.location}/state/publisher", tmp_path / "publisher")
    send(store, 5)
    Publisher(store).run_once()
    for path, backup in (("op", "op"), ("state/publisher", "publisher")):
        shutil.rmtree(f"{store.location}/{path}")
        shutil.copytree(tmp_path / backup, f"{store.location}/{path}")
    send(store, 20)
    with pytest.raises(SourceRestoredError, match="has another commit"):
        Publisher(store).run_once()


def test_running_publisher_sees_it_too(store: Store, tmp_path: Path) -> None:
    send(store, 5)
    shutil.copytree(f"{store.location}/op", tmp_path / "op")
    send(store, 5)
    publisher = Publisher(store)
    publisher.run_once()
    shutil.rmtree(f"{store.location}/op")
    shutil.copytree(tmp_path / "op", f"{store.location}/op")
    send(store, 20)
    with pytest.raises(SourceRestoredError):
        publisher.run_once()


def test_op_log_as_it_was_goes_on(store: Store) -> None:
    for _ in range(3):
        send(store, 5)
        Publisher(store).run_once()

    assert messages(store) == 15


# --- topics that are newer than the op log -----------------------------------------------------


def restore_all_but_topics(store: Store, backup: Path) -> None:
    """A copy that was taken while the store ran: its topics were copied last."""
    for path in ("half", "op", "settled", "state"):
        shutil.rmtree(f"{store.location}/{path}")
        shutil.copytree(backup / path, f"{store.location}/{path}")


@pytest.mark.parametrize("sent_before", [0, 3, 20])
def test_topics_that_are_newer_than_the_op_log_swallow_nothing(
    store: Store, tmp_path: Path, sent_before: int
) -> None:
    """Whether the log has grown beyond the topics again or not."""
    send(store, 5)
    Publisher(store).run_once()
    shutil.copytree(store.location, tmp_path / "backup")
    send(store, 5)
    Publisher(store).run_once()
    restore_all_but_topics(store, tmp_path / "backup")
    before = messages(store)
    send(store, sent_before)

    publisher = Publisher(store)
    with pytest.raises(SourceRestoredError, match="order-paid"):
        for _ in range(3):
            publisher.run_once()
            send(store, 1)
    assert messages(store) == before


def test_a_topic_that_another_publisher_wrote_is_not_taken_for_a_restored_one(
    store: Store,
) -> None:
    first, second = Publisher(store), Publisher(store)
    first.run_once()
    send(store, 2)
    rounds = first._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    send(store, 2)
    second.run_once()

    rounds._publish()

    assert messages(store) == 4
