"""Streams of the data source `txmq` beside faults: other members, other topics, foreign rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from tests.kit.consumer_world import (
    BILLING,
    ConsumerWorld,
    bodies,
    drained,
    retrying_consumer,
    wake,
)
from tests.kit.delay_world import TOPIC
from tests.kit.foreign_input import ForeignProgram, column_of
from tests.kit.stream_world import Query, TwoQueues
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import (
    ConfigError,
    MessagesExpiredError,
    OffsetOutOfRangeError,
    StorageError,
    TopicRestoredError,
)
from txmq.ops.admin.groups import ConsumerGroups
from txmq.spark import data_source
from txmq.spark.data_source import TopicBatchReader, read_options
from txmq.spark.topic_slices import columns_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = TwoQueues(tmp_path, queues=2)
    yield made
    made.close()


def done_and_killed(world: ConsumerWorld) -> Query:
    """A first batch that is done, and of which the group was not told."""
    query = Query.over(world, group=BILLING)
    query.plan()
    query.write()
    query.done += 1
    query.die()
    return query


def advance(world: ConsumerWorld, leases: float = 1.1) -> None:
    world.clock.advance(world.store.config.consumer_lease_s * leases)


def run_until_owner(world: ConsumerWorld, query: Query) -> None:
    for _ in range(4):
        query.run()
        advance(world)


def twice(query: Query) -> list[str]:
    places = [f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}" for row in query.rows]
    return sorted({place for place in places if places.count(place) > 1})


def folder(world: ConsumerWorld) -> Path:
    return Path(world.store.location, "topics", TOPIC)


def remade(world: ConsumerWorld, tmp_path: Path, *batches: str) -> None:
    """Put a topic of another store in the place of the topic, with as many commits as batches."""
    other = ConsumerWorld(tmp_path / "other", queues=2)
    for body in batches:
        other.send_to(0, body)
    other.close()
    shutil.rmtree(folder(world))
    shutil.copytree(folder(other), folder(world))


# --- what was done and not told -------------------------------------------------------------------


def test_what_was_done_is_not_told_to_a_topic_that_was_made_anew(
    world: ConsumerWorld, tmp_path: Path
) -> None:
    world.fill(3)
    query = done_and_killed(world)
    remade(world, tmp_path, "x0", "x1", "x2", "x3")

    with pytest.raises(TopicRestoredError):
        run_until_owner(world, query)


def test_queue_that_comes_between_two_looks_is_not_read_again(world: ConsumerWorld) -> None:
    world.fill(4)
    query = done_and_killed(world)
    query.run()
    ranges = query.reader._source()._ranges  # type: ignore[attr-defined]
    member, resume = ranges._reader._member, ranges.resume

    def and_the_lease_ends(earlier: Any) -> Any:
        pending = resume(earlier)
        advance(world, 0.2)
        member._looked_s = 0.0
        return pending

    for _ in range(4):
        advance(world, 0.3)
        query.run()
    world.fill(1)
    with patch.object(ranges, "resume", and_the_lease_ends):
        query.run()
    run_until_owner(world, query)

    assert twice(query) == []
    assert len(query.rows) == 10


def test_batch_whose_queues_were_lost_meanwhile_is_not_read_again(world: ConsumerWorld) -> None:
    world.topics.create("refunds", queue_nums=1)
    world.fill(4)
    world.send_to(0, "refund", topic="refunds")
    query = Query.over(world, topic=f"{TOPIC},refunds", group=BILLING)
    query.run()
    world.fill(4)
    query.plan()
    query.write()
    groups = ConsumerGroups(world.store, clock=world.clock)
    first = ConsumeFromWhere.FIRST_OFFSET
    groups.reset_offsets(BILLING, "refunds", first, apply=True, force=True)
    query.done += 1
    run_until_owner(world, query)

    assert twice(query) == ["refunds/0/0"]


def test_part_that_another_member_handled_too_comes_no_third_time(world: ConsumerWorld) -> None:
    world.fill(6)
    query = done_and_killed(world)
    member = world.consumer()
    for _ in range(4):
        advance(world)
        wake(member)
        if own := member.poll(4, 0):
            break
    member.commit()
    member.close()
    world.consumers.clear()
    run_until_owner(world, query)

    assert len(own) == 4
    assert len(query.rows) == 12


# --- availableNow ---------------------------------------------------------------------------------


def test_available_now_at_the_latest_offset_takes_nothing(world: ConsumerWorld) -> None:
    world.fill(3)
    query = Query.over(world, startingOffsets="latest")
    query.reader.prepareForTriggerAvailableNow()
    world.fill(2)

    assert query.run() == 0
    query.die()
    assert query.run() == 0


def test_available_now_takes_retries_too(world: ConsumerWorld) -> None:
    world.fill(3)
    member = retrying_consumer(world)
    for message in member.poll(100, 0):
        member.send_back(message, reason="bad")
    member.commit()
    member.close()
    world.consumers.clear()
    world.publisher.run_once()
    for _ in range(2):
        world.after(3600)
    query = Query.over(world, group=BILLING)
    query.reader.prepareForTriggerAvailableNow()
    query.run()

    assert len(query.rows) == 6


def test_available_now_takes_all_that_was_there_though_more_comes(world: ConsumerWorld) -> None:
    world.send_to(1, *(f"old-{number}" for number in range(8)))
    query = Query.over(world, group=BILLING, maxMessagesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    world.send_to(0, *(f"new-{number}" for number in range(50)))
    query.run()

    assert query.bodies == [f"old-{number}" for number in range(8)]


def test_available_now_leaves_its_group_once(world: ConsumerWorld) -> None:
    world.fill(3)
    query = Query.over(world, group=BILLING)
    query.reader.prepareForTriggerAvailableNow()
    query.run()
    table = world.store.tables.table_at(f"state/group_{BILLING}")
    before = table.refresh().version
    for _ in range(5):
        assert query.plan() is False

    assert table.refresh().version == before


# --- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"group": BILLING}], ids=["alone", "group"])
@pytest.mark.parametrize("queues", [2, 3, 5])
def test_no_queue_waits_for_ever(tmp_path: Path, options: dict[str, str], queues: int) -> None:
    world = ConsumerWorld(tmp_path, queues=queues)
    world.fill(40, queues=queues)
    query = Query.over(world, maxMessagesPerTrigger="1", **options)
    for _ in range(3 * queues + 3):
        query.plan()
        query.write()
        query.done += 1

    assert {row["queue_id"] for row in query.rows} == set(range(queues))
    query.stop()
    world.close()


# --- topics that are others now -------------------------------------------------------------------


@pytest.mark.parametrize("commits", [2, 9])
def test_running_stream_is_told_of_a_topic_that_was_made_anew(
    world: ConsumerWorld, tmp_path: Path, commits: int
) -> None:
    world.fill(2)
    query = Query.over(world)
    query.run()
    DeltaTable(str(folder(world))).optimize.compact()
    query.run()
    remade(world, tmp_path, *(f"x{number}" for number in range(commits)))
    query.reader._open()[0]._looked_s.clear()

    with pytest.raises((TopicRestoredError, OffsetOutOfRangeError)):
        query.run()


def test_topic_that_was_made_anew_and_is_empty_is_told_beside_another_one(
    world: ConsumerWorld, tmp_path: Path
) -> None:
    world.topics.create("refunds", queue_nums=1)
    world.fill(2)
    world.send_to(0, "refund", topic="refunds")
    query = Query.over(world, topic=f"{TOPIC},refunds")
    query.run()
    query.stop()
    remade(world, tmp_path, "x")
    for path in sorted((folder(world) / "_delta_log").glob("*.json"))[1:]:
        path.unlink()
    world.send_to(0, "more", topic="refunds")

    with pytest.raises((TopicRestoredError, OffsetOutOfRangeError)):
        query.run()


# --- messages that are gone, and rows of other programs -------------------------------------------


def foreign_row(world: ConsumerWorld, offset: int, **values: bytes) -> None:
    rows = pa.table(DeltaTable(str(folder(world))).to_pyarrow_table()).slice(0, 1)
    row = {name: rows[name].combine_chunks() for name in rows.column_names}
    row["queue_offset"] = pa.array([offset], pa.int64())
    row |= {name: column_of(value, pa.string()) for name, value in values.items()}
    ForeignProgram(world.store.location, f"topics/{TOPIC}").append(row, ())


def test_row_of_another_program_moves_no_group_beyond_the_end(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    query = Query.over(world, group=BILLING, failOnDataLoss="false")
    query.run()
    world.send_to(0, "d", "e")
    foreign_row(world, 10**12)
    DeltaTable(str(folder(world))).delete("queue_offset = 3 or queue_offset = 4")
    query.run()
    world.send_to(0, "f")
    query.run()

    assert query.bodies == ["a", "b", "c", "f"]


def test_first_offset_is_no_row_of_another_program(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    foreign_row(world, 10**12)
    DeltaTable(str(folder(world))).delete("queue_offset < 3")
    query = Query.over(world)
    query.run()
    world.send_to(0, "d")
    query.run()

    assert query.bodies == ["d"]


def test_new_group_may_begin_behind_what_is_gone(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    DeltaTable(str(folder(world))).delete("queue_offset = 0")
    query = Query.over(world, group=BILLING, failOnDataLoss="false")
    query.run()

    assert query.bodies == ["b", "c"]


def test_gone_message_is_told_though_another_queue_has_news(world: ConsumerWorld) -> None:
    world.fill(1)
    query = Query.over(world, group=BILLING, maxMessagesPerTrigger="3")
    query.run()
    world.fill(9)
    DeltaTable(str(folder(world))).delete("queue_id = 0 and queue_offset = 1")

    with pytest.raises(MessagesExpiredError, match="queue 0"):
        query.run()


def test_text_that_is_not_utf8_takes_no_place(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    for name in ("producer_group", "tags", "topic"):
        foreign_row(world, 3, **{name: b"\xff\xfe"})
    world.send_to(0, "d")
    query = Query.over(world)
    query.run()

    assert query.bodies == ["a", "b", "c", "d"]


def test_large_range_that_is_gone_is_told_at_once(world: ConsumerWorld) -> None:
    world.send_to(0, "a")
    DeltaTable(str(folder(world))).delete()
    reader = Query.over(world).reader
    batch = {TOPIC: {"commit": None, "queues": {"0": [0, 0, 0, 10**12]}}}
    (task,) = reader.partitions({}, batch)

    with pytest.raises(MessagesExpiredError, match="1,000,000,000,000 messages from offset 0"):
        list(reader.read(task))


def test_files_without_statistics_make_few_tasks(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.spark.topic_slices.SLICE_BYTES", 1_000)
    world.send_to(0, *(str(number) for number in range(500)))
    for path in (folder(world) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        path.write_text("\n".join(map(json.dumps, actions)) + "\n", "utf-8")
    query = Query.over(world)
    query.plan()

    assert len(query.reader.partitions(query.start_of(0), query.offsets[0])) < 100


def test_file_that_is_gone_is_an_error_of_the_storage_without_its_cause(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "a")
    query = Query.over(world)
    query.plan()
    (task,) = query.reader.partitions(query.start_of(0), query.offsets[0])
    for path in folder(world).rglob("*.parquet"):
        path.unlink()

    with pytest.raises(StorageError) as caught:
        list(query.reader.read(task))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_frame_of_a_busy_topic_misses_nothing(world: ConsumerWorld) -> None:
    world.fill(4)
    options = read_options({"path": world.store.location, "topic": TOPIC})
    reader = TopicBatchReader(options, from_arrow_schema(columns_of(options)))

    def late(*arguments: Any) -> Any:
        world.fill(1)
        return offsets(*arguments)

    offsets = data_source.TopicOffsets
    with patch.object(data_source, "TopicOffsets", late):
        rows = [batch.num_rows for task in reader.partitions() for batch in reader.read(task)]

    assert sum(rows) == 10


def test_pull_member_reads_on_after_the_stream(world: ConsumerWorld) -> None:
    world.fill(3)
    query = Query.over(world, group=BILLING)
    query.run()
    query.stop()
    world.fill(1)

    assert bodies(drained(world.consumer())) == ["0-0", "1-0"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"startingOffsets": '{"order-pad": {"0": 1}}'}, "which is not read"),
     ({"startingOffsets": "[" * 100_000}, "earliest, latest or JSON")],
)  # fmt: skip
def test_start_that_names_nothing_is_told(
    world: ConsumerWorld, options: dict[str, str], fault: str
) -> None:
    world.fill(1)
    with pytest.raises(ConfigError, match=fault):
        Query.over(world, **options).run()
