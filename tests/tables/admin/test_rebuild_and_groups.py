"""A rebuild gives no offset to another message under a group that has read it, or reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, offsets_of
from tests.kit.delay_world import TOPIC
from tests.kit.kills import killed_at
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.delta.parquet import write_file
from txmq.errors import OffsetOutOfRangeError, TopicNotRebuiltError, TopicRestoredError
from txmq.ground.columns import integers
from txmq.ground.fail_points import FailPoint, arm
from txmq.ops.admin.groups import ConsumerGroups
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.testing import WrongClock, before_commit

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


def double(world: ConsumerWorld) -> None:
    """All messages are there twice."""
    log = world.store.tables.topic_log(TOPIC, world.store.tables.op_log().table.log.table_id)
    rows = log.table.rows.read(log.table.files.all(), log.table.log.columns.names)
    place = rows.column_names.index("queue_offset")
    moved = pc.add(rows["queue_offset"], rows.num_rows)
    log.swap(rows.set_column(place, rows.schema.field(place), moved), log.mark, {0: len(rows) * 2})


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


@pytest.mark.parametrize("is_doubled", [True, False])
def test_group_that_is_reset_while_the_topic_is_rebuilt_misses_nothing(
    tmp_path: Path, *, is_doubled: bool
) -> None:
    with closing(ConsumerWorld(tmp_path, queues=1)) as world:
        world.send_to(0, *(f"m{number}" for number in range(6)))
        if is_doubled:
            double(world)
        else:
            skip(world, "m2", "m3")
        read(world, 1)
        groups = ConsumerGroups(world.store, clock=world.clock)

        with before_commit(lambda: rebuilt(world), table=f"group_{BILLING}"):
            reset = groups.reset_offsets(BILLING, TOPIC, ConsumeFromWhere.LAST_OFFSET, apply=True)

        assert (reset.before, reset.after) == ({0: 1}, {0: 6})
        world.send_to(0, "m6", "m7")
        assert bodies(drained(world.consumer())) == ["m6", "m7"]


def rebuilt(world: ConsumerWorld) -> None:
    assert world.topics.rebuild(TOPIC, apply=True).is_written


@pytest.mark.parametrize("ahead_s", [-400 * 86_400, 400 * 86_400])
def test_clock_of_the_operator_makes_no_message_older_or_younger(
    world: ConsumerWorld, ahead_s: int
) -> None:
    topics = Topics(world.store, clock=WrongClock(ahead_s, of_store=world.clock))

    assert topics.rebuild(TOPIC, apply=True).missing == 2

    times = {row["store_timestamp"].timestamp() for row in world.rows()}
    assert {abs(time_s - world.clock.now_ms() / 1000) < 1 for time_s in times} == {True}


# --- a rebuild that sleeps ------------------------------------------------------------------------


def test_group_that_is_reset_before_a_rebuild_wakes_up_misses_nothing(world: ConsumerWorld) -> None:
    """The whole reset is done between the rebuild's look at the groups and its commit."""
    read(world, 1)

    with before_commit(lambda: reset_to_end(world), table=TOPIC):
        result = world.topics.rebuild(TOPIC, apply=True)

    assert (result.is_written, result.groups) == (True, (BILLING,))
    assert bodies(drained(world.consumer())) == ["m2", "m3", "m4", "m5"]


def test_group_that_reads_before_a_rebuild_wakes_up_misses_nothing(world: ConsumerWorld) -> None:
    with before_commit(lambda: read(world, 4), table=TOPIC):
        result = world.topics.rebuild(TOPIC, apply=True)

    assert result.groups == (BILLING,)
    assert bodies(drained(world.consumer())) == ["m2", "m3", "m4", "m5"]


def test_member_that_joins_before_a_rebuild_wakes_up_commits_no_old_offset(
    world: ConsumerWorld,
) -> None:
    consumers = []

    def join() -> None:
        consumers.append(world.consumer())
        assert len(consumers[0].poll(10, 0)) == 4

    with before_commit(join, table=TOPIC):
        world.topics.rebuild(TOPIC, apply=True)

    assert consumers[0].commit().refused == {QUEUE}
    assert bodies(drained(consumers[0])) == [f"m{number}" for number in range(6)]


def test_member_that_has_read_the_old_order_is_told_where_nobody_puts_it_back(
    world: ConsumerWorld,
) -> None:
    """The rebuild is killed between its commit and its second look at the groups."""
    consumer = world.consumer()

    def read_on() -> None:
        assert len(consumer.poll(10, 0)) == 4

    with before_commit(read_on, table=TOPIC), killed_at(1, FailPoint.TOPIC_COMMITTED):
        world.topics.rebuild(TOPIC, apply=True, force=True)

    consumer.commit()
    with pytest.raises(TopicRestoredError, match="rebuilt"):
        consumer.poll(10, 0)
    consumer.close()
    with pytest.raises(TopicRestoredError, match="rebuilt"):
        world.consumer(member_id="next").poll(10, 0)


def test_by_force_what_was_read_in_the_new_order_does_not_come_again(world: ConsumerWorld) -> None:
    """The rebuild sleeps between its commit and its second look at the groups."""
    read(world, 4)

    with at_step(FailPoint.TOPIC_COMMITTED, lambda: read(world, 10)):
        world.topics.rebuild(TOPIC, apply=True, force=True)

    world.send_to(0, "m6")
    assert bodies(drained(world.consumer())) == ["m6"]


def test_reset_after_the_commit_of_a_rebuild_is_not_undone_by_its_second_look(
    world: ConsumerWorld,
) -> None:
    read(world, 1)

    with at_step(FailPoint.TOPIC_COMMITTED, lambda: reset_to_end(world)):
        world.topics.rebuild(TOPIC, apply=True, force=True)

    world.send_to(0, "m6")
    assert bodies(drained(world.consumer())) == ["m6"]


def test_reset_to_an_offset_that_a_rebuild_takes_away_changes_nothing(tmp_path: Path) -> None:
    with closing(ConsumerWorld(tmp_path, queues=1)) as world:
        world.send_to(0, *(f"m{number}" for number in range(6)))
        double(world)
        read(world, 1)
        groups = ConsumerGroups(world.store, clock=world.clock)

        with (
            before_commit(lambda: rebuilt(world), table=f"group_{BILLING}"),
            pytest.raises(OffsetOutOfRangeError),
        ):
            groups.reset_offsets(BILLING, TOPIC, {0: 12}, apply=True)

        assert offsets_of(world)[QUEUE] == 1
        assert bodies(drained(world.consumer())) == [f"m{number}" for number in range(1, 6)]


def reset_to_end(world: ConsumerWorld) -> None:
    groups = ConsumerGroups(world.store, clock=world.clock)
    groups.reset_offsets(BILLING, TOPIC, ConsumeFromWhere.LAST_OFFSET, apply=True)


@contextmanager
def at_step(point: FailPoint, action: Callable[[], None]) -> Iterator[None]:
    """Do this once as a step is reached, as others do while this process sleeps there."""
    waiting = [action]
    disarm = arm(lambda at: waiting.pop()() if at is point and waiting else None)
    try:
        yield
    finally:
        disarm()
    assert not waiting
