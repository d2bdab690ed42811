"""A rebuild gives no offset to another message under a group that has read it, or reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, offsets_of
from tests.kit.delay_world import TOPIC
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.delta.parquet import write_file
from txmq.errors import TopicNotRebuiltError
from txmq.ground.columns import integers
from txmq.ops.cli.app import app

QUEUE = TopicQueue(TOPIC, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    """A publisher left out `m2` and `m3`: the messages behind them have their offsets."""
    made = ConsumerWorld(tmp_path, queues=1)
    made.send_to(0, *(f"m{number}" for number in range(6)))
    skip(made, "m2", "m3")
    yield made
    made.close()


def skip(world: ConsumerWorld, *skipped: str) -> None:
    import pyarrow as pa

    log = world.store.tables.topic_log(TOPIC, world.store.tables.op_log().table.log.table_id)
    table = log.table
    rows = table.rows.read(table.files.all(), table.log.columns.names)
    rows = rows.filter(pc.invert(pc.is_in(rows["body"], pa.array([b.encode() for b in skipped]))))
    offsets = pa.array(range(rows.num_rows), pa.int64())
    place = rows.column_names.index("queue_offset")
    rows = rows.set_column(place, rows.schema.field(place), offsets)
    new = write_file(
        [rows], table.log.columns, table.folder.filesystem, table.schema.statistics_columns
    )
    log.replace_files([new], log.mark, {0: rows.num_rows})


def shown(world: ConsumerWorld) -> list[tuple[int, str]]:
    return [(row["queue_offset"], row["body"].decode()) for row in world.rows()]


def everything(count: int = 6) -> list[tuple[int, str]]:
    return [(number, f"m{number}") for number in range(count)]


def read(world: ConsumerWorld, count: int) -> None:
    with world.consumer() as consumer:
        consumer.poll(count, 0)
        consumer.commit()


def test_group_that_has_read_beyond_the_first_offset_that_moves_is_not_led_astray(
    world: ConsumerWorld,
) -> None:
    read(world, 3)
    before = shown(world)

    assert world.topics.rebuild(TOPIC).groups == (BILLING,)
    with pytest.raises(TopicNotRebuiltError, match=rf"{BILLING}.*reset their offsets"):
        world.topics.rebuild(TOPIC, apply=True)

    assert shown(world) == before


def test_group_that_is_not_there_yet_reads_on_after_the_rebuild(world: ConsumerWorld) -> None:
    read(world, 2)

    result = world.topics.rebuild(TOPIC, apply=True)

    assert (result.missing, result.groups, result.is_written) == (2, (), True)
    assert shown(world) == everything()
    assert bodies(drained(world.consumer())) == ["m2", "m3", "m4", "m5"]


def test_group_whose_members_read_the_topic_is_not_led_astray(world: ConsumerWorld) -> None:
    """What a member has in its hands may lie beyond what it has committed."""
    consumer = world.consumer()
    assert len(consumer.poll(10, 0)) == 4

    with pytest.raises(TopicNotRebuiltError, match=BILLING):
        world.topics.rebuild(TOPIC, apply=True)


def test_by_force_the_group_goes_back_and_misses_nothing(world: ConsumerWorld) -> None:
    read(world, 4)
    reading = world.consumer(group="shipping")
    assert len(reading.poll(10, 0)) == 4

    assert world.topics.rebuild(TOPIC, apply=True, force=True).is_written

    assert offsets_of(world)[QUEUE] == 2
    assert bodies(drained(world.consumer())) == ["m2", "m3", "m4", "m5"]
    assert reading.commit().refused == {QUEUE}


def test_by_force_each_member_of_a_broadcast_goes_back_and_none_forth(
    world: ConsumerWorld,
) -> None:
    for name, count in (("blue", 4), ("red", 1)):
        with world.consumer(mode=ConsumeMode.BROADCASTING, member_id=name) as consumer:
            consumer.poll(count, 0)
            consumer.commit()

    world.topics.rebuild(TOPIC, apply=True, force=True)

    red = world.consumer(mode=ConsumeMode.BROADCASTING, member_id="red")
    assert bodies(drained(red)) == ["m1", "m2", "m3", "m4", "m5"]


def test_restored_rows_at_their_old_offsets_lead_nobody_astray(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    world = ConsumerWorld(tmp_path, queues=1)
    world.send_to(0, *(f"m{number}" for number in range(6)))
    read(world, 5)
    DeltaTable(f"{world.store.location}/topics/{TOPIC}").delete("queue_offset IN (2, 3)")

    assert world.topics.rebuild(TOPIC, apply=True).is_written

    assert shown(world) == everything()
    assert bodies(drained(world.consumer())) == ["m5"]
    world.close()


def test_row_too_many_at_the_end_is_not_taken_from_under_a_group(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, queues=1)
    world.send_to(0, "m0", "m1")
    log = world.store.tables.topic_log(TOPIC, world.store.tables.op_log().table.log.table_id)
    rows = log.table.rows.read(log.table.files.all(), log.table.log.columns.names)
    import pyarrow as pa

    double = rows.slice(1, 1)
    place = rows.column_names.index("queue_offset")
    double = double.set_column(place, rows.schema.field(place), pa.array([2]))
    log.swap(double, log.mark, {0: 3})
    assert integers(double["queue_offset"], 0).tolist() == [2]
    read(world, 3)

    with pytest.raises(TopicNotRebuiltError, match="0 from 2 on"):
        world.topics.rebuild(TOPIC, apply=True)
    world.close()


def test_command_names_the_groups_and_takes_force(world: ConsumerWorld) -> None:
    read(world, 4)
    command = ["rebuild-topic", world.store.location, TOPIC]

    shown_first = CliRunner().invoke(app, command)
    refused = CliRunner().invoke(app, [*command, "--apply"])
    forced = CliRunner().invoke(app, [*command, "--apply", "--force"])

    assert BILLING in shown_first.output
    assert refused.exit_code != 0
    assert forced.exit_code == 0, forced.output
    assert shown(world) == everything()
