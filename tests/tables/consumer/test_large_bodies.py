"""What readers hold in memory is bounded in bytes, however large bodies are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import (
    BILLING,
    ConsumerWorld,
    are_in_order,
    bodies,
    drained,
    taken_from,
)
from tests.kit.delay_world import TOPIC
from txmq.consumer import reader as topic_reader
from txmq.consumer import taking
from txmq.consumer.arguments import Subscription
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.reader import TopicReader
from txmq.delta.parquet import write_file
from txmq.spark.members import RangeReader, count_messages

KIB = 1024
BODY_BYTES, COUNT, QUEUES = 64 * KIB, 48, 2
WINDOW_BYTES = 8 * BODY_BYTES
# Sixteen rows are decoded at once, and their other columns take a little room.
STEP_BYTES = 17 * BODY_BYTES


def body(queue: int, number: int) -> str:
    return f"{queue}-{number}-".ljust(BODY_BYTES, "x")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsumerWorld]:
    """Both queues lie in one file, row by row, as a publisher writes them."""
    made = ConsumerWorld(tmp_path, queues=QUEUES, consume_batch_bytes=4 * BODY_BYTES)
    for queue in range(QUEUES):
        made.send_to(queue, *(body(queue, number) for number in range(COUNT)))
    table = made.store.tables.table_at(f"topics/{TOPIC}")
    files = table.files.all()
    rows = table.rows.read(files, table.log.columns.names).sort_by("queue_offset").combine_chunks()
    new = write_file(
        [rows], table.log.columns, table.folder.filesystem, table.schema.statistics_columns
    )
    table.writer.rewrite(files, [new])
    monkeypatch.setattr(topic_reader, "WINDOW_BYTES", WINDOW_BYTES)
    monkeypatch.setattr(topic_reader, "KEPT_BYTES", 2 * WINDOW_BYTES)
    monkeypatch.setattr(taking, "READ_AHEAD_BYTES", 2 * WINDOW_BYTES)
    yield made
    made.close()


def test_run_of_a_file_of_large_bodies_is_a_part_of_the_file(world: ConsumerWorld) -> None:
    reader = TopicReader(world.store, TOPIC)
    reader.look()

    run = reader.read(0, 0)

    assert run is not None
    assert 0 < len(run.rows) < COUNT
    assert sum(run.rows.sizes_bytes()) <= STEP_BYTES
    assert reader._rows.kept_bytes <= 2 * STEP_BYTES


def test_poll_of_one_message_reads_no_more_than_a_window_ahead(world: ConsumerWorld) -> None:
    consumer = world.consumer()

    for _ in range(6):
        assert len(consumer.poll(1, 0)) == 1

    ahead = consumer._reader.positions._positions.values()
    assert sum(position.ahead_bytes for position in ahead) <= 2 * WINDOW_BYTES
    assert consumer._reader._readers[TOPIC]._rows.kept_bytes <= 2 * STEP_BYTES


@pytest.mark.parametrize("max_messages", [1, 5, 1000])
def test_poll_hands_out_what_fits_into_the_batch_and_everything_in_the_end(
    world: ConsumerWorld, max_messages: int
) -> None:
    consumer, handed = world.consumer(), []
    while polled := consumer.poll(max_messages, 0):
        assert sum(len(message.body) for message in polled) <= 4 * BODY_BYTES
        handed += polled

    assert are_in_order(handed)
    expected = sorted(body(q, n) for q in range(QUEUES) for n in range(COUNT))
    assert sorted(bodies(handed)) == expected


def test_message_that_is_larger_than_the_batch_is_handed_out_alone(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, consume_batch_bytes=1)
    world.send_to(0, "m0", "m1")
    consumer = world.consumer()

    assert [bodies(consumer.poll(10, 0)) for _ in range(3)] == [["m0"], ["m1"], []]
    world.close()


def test_rows_of_a_window_that_was_dropped_are_read_again(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    everything = drained(consumer, 4)
    consumer.commit()
    consumer.seek(TOPIC, 1, 3)

    again = drained(consumer, 4)

    assert len(everything) == QUEUES * COUNT
    assert bodies(again) == [body(1, number) for number in range(3, COUNT)]


def test_handler_is_given_batches_of_the_same_bound(world: ConsumerWorld) -> None:
    consumer, seen = world.consumer(), list[str]()
    most: list[int] = []
    take = consumer._reader.take

    def counted(*arguments: object, **more: object) -> object:
        messages = take(*arguments, **more)  # type: ignore[arg-type]
        most.append(len(messages))
        return messages

    consumer._reader.take = counted  # type: ignore[assignment]
    consumer.run_once(lambda message: seen.append(message.body.decode()))

    assert len(seen) == QUEUES * COUNT
    assert max(most) <= 4


def test_batch_of_offsets_is_bounded_by_the_size_of_its_files(world: ConsumerWorld) -> None:
    subscription = Subscription.of(
        consumer_group=BILLING, topics=TOPIC, from_where=ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp=None, mode=ConsumeMode.CLUSTERING, member_id=None, namespace=None,
    )  # fmt: skip
    reader = GroupReader(world.store, subscription, world.clock, world.sent_back)
    (file,) = world.store.tables.table_at(f"topics/{TOPIC}").files.all()
    row_bytes = file.size_bytes // file.num_records
    ranges = RangeReader(reader)

    first = taken_from(ranges, 100_000, 5 * row_bytes)
    smallest = taken_from(ranges, 100_000, 1)
    rest = taken_from(ranges, 100_000)
    reader.leave()

    assert count_messages(first) == 5
    assert count_messages(smallest) == 1
    assert count_messages(rest) == QUEUES * COUNT - 6
