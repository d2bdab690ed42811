"""A reader meets retention, rebuilds, compaction, clean-up, and topics that change under it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.kit.consumer_world import (
    BILLING,
    QUEUES,
    ConsumerWorld,
    are_in_order,
    bodies,
    drained,
    offsets_of,
    wake,
)
from tests.kit.delay_world import TOPIC
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.consumer.reader import TopicReader
from txmq.errors import MessagesExpiredError, OffsetOutOfRangeError
from txmq.maintenance.retention import TopicRetention
from txmq.maintenance.service import Maintenance
from txmq.store.schemas import TOPIC as SCHEMA

HOUR_S = 3600


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, checkpoint_interval=5, file_reserved_time_h=10_000)
    yield made
    made.close()


def retained(world: ConsumerWorld, hours: float) -> int:
    """What retention of an hour takes, hours later; then the reader's lease is renewed."""
    world.topics.alter(TOPIC, reserved_time_h=1)
    world.clock.advance(hours * HOUR_S)
    return TopicRetention(world.store, world.clock).run()


def maintained(world: ConsumerWorld, days: float = 3) -> None:
    """Compacted, and cleaned as far as if nobody had looked for days."""
    world.clock.advance(days * 24 * HOUR_S)
    Maintenance(world.store, clock=world.clock).run_once()


def look_again(consumer: PullConsumer) -> None:
    wake(consumer)
    consumer._reader._looked_closely_s = 0.0


def table_path(world: ConsumerWorld) -> Path:
    return Path(world.store.location) / "topics" / TOPIC


# --- retention ----------------------------------------------------------------------------------


def test_messages_that_retention_took_are_said_before_anything_is_handed_out(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "m0", "m1")
    consumer = world.consumer()
    assert retained(world, 2) == 0, "the newest messages stay until there are later ones"
    world.send_to(0, "m2")
    world.send_to(1, "other")
    assert retained(world, 0.5) == 1

    with pytest.raises(MessagesExpiredError) as refused:
        consumer.poll(timeout_s=0)

    error = refused.value
    assert (error.topic, error.queue_id) == (TOPIC, 0)
    assert (error.next_offset, error.first_offset, error.missed) == (0, 2, 2)


def test_other_queues_are_served_and_the_error_comes_again_until_a_seek(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "m0")
    consumer = world.consumer()
    retained(world, 2)
    world.send_to(0, "m1")
    world.send_to(1, "other")
    retained(world, 0.5)
    handed = []
    errors = 0
    for _ in range(6):
        try:
            handed += consumer.poll(timeout_s=0)
        except MessagesExpiredError as error:
            errors += 1
            first_offset = error.first_offset

    assert bodies(handed) == ["other"]
    assert errors == 5
    consumer.commit()
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 0, "nothing is skipped in silence"

    consumer.seek(TOPIC, 0, first_offset)
    assert bodies(drained(consumer)) == ["m1"]


def test_messages_before_a_gap_are_handed_out_before_it_is_told(world: ConsumerWorld) -> None:
    for body in ("m0", "m1", "m2"):
        world.send_to(0, body)
    DeltaTable(str(table_path(world))).delete("queue_offset = 1")
    consumer = world.consumer()

    assert bodies(consumer.poll(5, 0)) == ["m0"]
    with pytest.raises(MessagesExpiredError) as told:
        consumer.poll(5, 0)
    assert (told.value.next_offset, told.value.first_offset) == (1, 2)
    consumer.seek(TOPIC, 0, told.value.first_offset)
    assert bodies(consumer.poll(5, 0)) == ["m2"]


def test_consumer_that_comes_after_retention_is_told_what_it_missed(world: ConsumerWorld) -> None:
    world.send_to(0, "m0")
    world.consumer().close()
    retained(world, 2)
    world.send_to(0, "m1")
    retained(world, 0.5)
    consumer = world.consumer()

    with pytest.raises(MessagesExpiredError, match="seek to 1"):
        consumer.run_once(print)


def test_new_group_begins_at_the_first_message_that_is_there(world: ConsumerWorld) -> None:
    world.send_to(0, "m0", "m1")
    retained(world, 2)
    world.send_to(0, "m2")
    retained(world, 0.5)

    assert bodies(drained(world.consumer())) == ["m2"]


def test_started_handler_serves_the_other_queues_meanwhile(world: ConsumerWorld) -> None:
    from tests.kit.reading import wait_until

    world.send_to(0, "m0")
    consumer = world.consumer()
    retained(world, 2)
    world.send_to(0, "m1")
    world.send_to(1, "other")
    retained(world, 0.5)
    seen: list[str] = []

    handle = consumer.start(lambda message: seen.append(message.body.decode()))
    wait_until(lambda: seen == ["other"])
    handle.stop()

    assert handle.exception is None


# --- compaction, clean-up, rebuild --------------------------------------------------------------


def test_compaction_and_vacuum_behind_a_reader_change_nothing(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    for number in range(20):
        world.send_to(number % QUEUES, f"m{number}")
    first = consumer.poll(3, 0)
    consumer.commit()

    maintained(world)
    look_again(consumer)
    rest = drained(consumer)

    table = DeltaTable(str(table_path(world)))
    assert len(table.file_uris()) < 20
    assert not (table_path(world) / "_delta_log" / f"{0:020d}.json").exists()
    assert sorted(bodies([*first, *rest])) == sorted(f"m{n}" for n in range(20))
    assert are_in_order([*first, *rest])


def test_reader_that_slept_while_the_log_was_cleaned_reads_on(world: ConsumerWorld) -> None:
    world.send_to(0, "m0")
    consumer = world.consumer()
    assert bodies(drained(consumer)) == ["m0"]
    for number in range(1, 20):
        world.send_to(0, f"m{number}")
    maintained(world)

    look_again(consumer)
    handed = bodies(drained(consumer))
    look_again(consumer)
    handed += bodies(drained(consumer))

    assert handed == [f"m{n}" for n in range(1, 20)]


def test_merged_file_that_lies_around_another_one_keeps_the_order(world: ConsumerWorld) -> None:
    """Compaction merges small files, and a large one between them stays where it is."""
    for number in range(3):
        world.send_to(0, f"m{number}")
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    files = sorted(table.files.all(), key=lambda file: file.modified_ms)
    from txmq.maintenance.compaction import _merged

    table.writer.rewrite([files[0], files[2]], [_merged(table, [files[2], files[0]])])

    assert bodies(drained(world.consumer())) == ["m0", "m1", "m2"]


def test_rebuilt_topic_is_read_on_without_a_message_twice(world: ConsumerWorld) -> None:
    world.fill(3)
    consumer = world.consumer()
    first = consumer.poll(5, 0)
    consumer.commit()
    DeltaTable(str(table_path(world))).delete("queue_offset = 1")

    assert world.topics.rebuild(TOPIC, apply=True).is_written
    rest = drained(consumer)

    assert sorted(bodies([*first, *rest])) == sorted(f"{q}-{n}" for q in range(4) for n in range(3))
    assert are_in_order([*first, *rest])


def test_rows_that_a_stranger_deleted_are_missed_aloud(world: ConsumerWorld) -> None:
    world.send_to(0, "m0", "m1", "m2")
    consumer = world.consumer()
    DeltaTable(str(table_path(world))).delete("queue_offset = 1")
    assert bodies(consumer.poll(1, 0)) == ["m0"]

    with pytest.raises(MessagesExpiredError) as refused:
        consumer.poll(timeout_s=0)

    assert (refused.value.next_offset, refused.value.missed) == (1, 1)


def test_topic_that_has_fewer_messages_than_were_consumed_is_said(world: ConsumerWorld) -> None:
    world.send_to(0, "m0", "m1")
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()
    shutil.rmtree(table_path(world))
    look_again(consumer)

    with pytest.raises(OffsetOutOfRangeError) as refused:
        consumer.poll(timeout_s=0)

    assert (refused.value.offset, refused.value.end_offset) == (2, 0)


def test_topic_that_was_made_anew_by_hand_is_not_read_on_in_silence(world: ConsumerWorld) -> None:
    for number in range(3):
        world.send_to(0, f"m{number}")
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()
    shutil.rmtree(table_path(world))
    world.store.tables.create_topic(TOPIC)
    for queue in range(QUEUES):
        show_by_hand(world, queue, f"new-{queue}")
    look_again(consumer)

    with pytest.raises(OffsetOutOfRangeError) as refused:
        consumer.poll(timeout_s=0)

    assert (refused.value.offset, refused.value.end_offset) == (3, 1)
    consumer.seek(TOPIC, 0, 0)
    assert sorted(bodies(drained(consumer))) == [f"new-{queue}" for queue in range(4)]


def test_deleted_topic_goes_on_with_its_next_message(world: ConsumerWorld) -> None:
    world.send_to(0, "m0")
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()
    assert world.topics.delete(TOPIC, apply=True).is_written

    world.send_to(0, "again")

    assert bodies(drained(consumer)) == ["again"]


def test_messages_that_went_with_their_topic_are_missed_aloud(world: ConsumerWorld) -> None:
    world.send_to(0, "m0")
    consumer = world.consumer()
    world.topics.delete(TOPIC, apply=True)

    with pytest.raises(MessagesExpiredError) as refused:
        consumer.poll(timeout_s=0)

    assert (refused.value.first_offset, refused.value.missed) == (1, 1)
    consumer.seek(TOPIC, 0, 1)
    assert drained(consumer) == []


# --- queues -------------------------------------------------------------------------------------


def test_queue_that_a_topic_got_later_is_read_from_its_first_message(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, topic_refresh_s=0.0)
    world.topics.create(TOPIC, queue_nums=1)
    consumer = world.consumer(from_where=ConsumeFromWhere.LAST_OFFSET)
    assert TopicQueue(TOPIC, 1) not in consumer.assignment

    world.topics.alter(TOPIC, queue_nums=2)
    world.send_to(1, "new")
    look_again(consumer)

    assert bodies(drained(consumer)) == ["new"]
    world.close()


def test_queue_that_only_the_messages_show_is_found(world: ConsumerWorld) -> None:
    world.topics.create(TOPIC, queue_nums=1)
    consumer = world.consumer()
    world.send_to(0, "near")
    show_by_hand(world, 2, "far")
    look_again(consumer)
    first = consumer.poll(timeout_s=0)
    look_again(consumer)

    handed = drained(consumer)

    assert TopicQueue(TOPIC, 2) in consumer.assignment
    assert bodies([*first, *handed]) == ["near", "far"]


def show_by_hand(world: ConsumerWorld, queue_id: int, body: str) -> None:
    """The first message of a queue, as if a publisher had written it."""
    row = {
        "message_id": "x:0", "topic": TOPIC, "queue_id": queue_id, "queue_offset": 0,
        "body": body.encode(),
    }  # fmt: skip
    marks = CommitProperties(app_transactions=[Transaction(f"txmq-offset/{queue_id}", 1, 1)])
    rows = pa.Table.from_pylist([row], schema=SCHEMA.columns)
    write_deltalake(str(table_path(world)), rows, mode="append", commit_properties=marks)


# --- large files --------------------------------------------------------------------------------


def test_large_file_is_read_one_row_group_at_a_time(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txmq.consumer import reader as topic_reader

    world.fill(40, queues=2)
    monkeypatch.setattr(topic_reader, "LARGE_FILE_BYTES", 0)
    monkeypatch.setattr(topic_reader, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(topic_reader, "KEPT_BYTES", 0)
    monkeypatch.setattr(topic_reader, "RUN_ROWS", 7)
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    from txmq.maintenance.compaction import _merged

    monkeypatch.setattr("txmq.maintenance.compaction.ROW_GROUP_BYTES", 1)
    files = table.files.all()
    table.writer.rewrite(files, [_merged(table, files)])

    handed = drained(world.consumer(), 9)

    assert len(handed) == 80
    assert are_in_order(handed)


def test_reader_forgets_what_is_behind_it_and_finds_it_again(world: ConsumerWorld) -> None:
    for number in range(5):
        world.send_to(0, f"m{number}")
    reader = TopicReader(world.store, TOPIC)
    reader.look()
    reader.forget_before({0: 5})
    assert reader._parts == []

    run = reader.read(0, 2)

    assert run is not None
    assert [message.body for message in run.rows.messages()] == [b"m2"]
    assert run.next_offset == 3


def test_topic_is_looked_at_by_one_file_name_while_nothing_happens(world: ConsumerWorld) -> None:
    world.send_to(0, "m0")
    reader = TopicReader(world.store, TOPIC)

    assert reader.look()
    assert not reader.look()
    world.send_to(0, "m1")
    assert reader.look()
    assert reader.ends == {0: 2}


def test_dead_letters_of_the_store_are_a_topic_like_others(world: ConsumerWorld) -> None:
    consumer = world.consumer("TRANS_CHECK_MAX_TIME_TOPIC", group="watch")

    assert drained(consumer) == []
    assert BILLING not in consumer.consumer_group
