"""Text that is not UTF-8, as a DataFrame may bring it, holds up nobody who reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, offsets_of
from tests.kit.delay_world import TOPIC
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.peek import TopicPeek
from txmq.consumer.send_back import SendBack
from txmq.delta.parquet import write_file
from txmq.ground.columns import python_values
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.cli.app import app

WRONG = b"k\xff\x80"
SHOWN = "k\ufffd\ufffd"


def not_utf8(values: list[str | None], wrong: set[int]) -> pa.Array:
    """Texts of which some are bytes that are no UTF-8; Spark's `cast(unhex('ff80') as string)`."""
    coded = [WRONG if n in wrong else value and value.encode() for n, value in enumerate(values)]
    return pa.array(coded, pa.binary()).view(pa.string())


def spoil(world: ConsumerWorld, topic: str, bodies_of_rows: set[bytes]) -> None:
    """Keys, tag, sharding key and a property of some rows are no UTF-8, as a DataFrame may do."""
    table = world.store.tables.table_at(f"topics/{topic}")
    files = table.files.all()
    rows = table.rows.read(files, table.log.columns.names).combine_chunks()
    wrong = {n for n, body in enumerate(rows["body"].to_pylist()) if body in bodies_of_rows}
    for name in ("keys", "tags", "sharding_key"):
        column = not_utf8(rows[name].to_pylist(), wrong)
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    table.writer.rewrite(
        files,
        [
            write_file(
                [rows], table.log.columns, table.folder.filesystem, table.schema.statistics_columns
            )
        ],
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    made.producer.send(
        [Message(TOPIC, body, keys="k", tags="eu") for body in (b"before", b"wrong", b"after")],
        queue_id=0,
    )
    made.publisher.run_once()
    spoil(made, TOPIC, {b"wrong"})
    yield made
    made.close()


def all_of(message: ReceivedMessage) -> list[Any]:
    return [message.keys, message.tags, message.sharding_key, dict(message.properties)]


def test_handler_is_given_the_message_and_its_neighbours(world: ConsumerWorld) -> None:
    seen: dict[bytes, list[Any]] = {}

    world.consumer().run_once(lambda message: seen.update({message.body: all_of(message)}))

    assert seen[b"before"][:2] == seen[b"after"][:2] == ["k", "eu"]
    assert seen[b"wrong"][:3] == [SHOWN, SHOWN, SHOWN]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3


def test_message_is_sent_back_and_becomes_a_dead_letter_that_is_listed(
    world: ConsumerWorld,
) -> None:
    sends_back = SendBack(world.store, BILLING, world.clock)
    with world.consumer(sends_back=sends_back) as consumer:
        for message in drained(consumer):
            consumer.send_back(message, reason="no", delay_level=-1)
        consumer.commit()
    world.publisher.run_once()

    letters = DeadLetters(world.store, BILLING).all()

    assert sorted(str(letter.keys) for letter in letters) == ["k", "k", SHOWN]


def test_filter_is_evaluated_for_the_other_messages(world: ConsumerWorld) -> None:
    assert bodies(drained(world.consumer({TOPIC: "eu"}))) == ["before", "after"]
    by_sql = world.consumer({TOPIC: "sql:TAGS = 'eu' OR n > 5"}, group="shipping")
    assert bodies(drained(by_sql)) == ["before", "after"]


def test_peek_and_the_command_show_it(world: ConsumerWorld) -> None:
    assert [message.keys for message in TopicPeek(world.store, TOPIC).messages()] == [
        "k", SHOWN, "k"
    ]  # fmt: skip

    result = CliRunner().invoke(app, ["consume", world.store.location, TOPIC])

    assert result.exit_code == 0, result.output
    keys = [json.loads(line)["keys"] for line in result.output.splitlines()]
    assert keys == ["k", SHOWN, "k"]


def test_query_shows_it(world: ConsumerWorld) -> None:
    (row,) = [row for row in world_rows(world) if row["body"] == b"wrong"]

    message = MessageQuery(world.store).by_id(row["message_id"])

    assert message.keys == "k", "the half is as it was sent"


def world_rows(world: ConsumerWorld) -> list[dict[str, Any]]:
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    return table.rows.read(table.files.all(), ("message_id", "body")).to_pylist()


def test_topic_with_it_can_be_compared_for_a_rebuild(world: ConsumerWorld) -> None:
    assert world.topics.rebuild(TOPIC).different == 1


def test_map_and_time_that_python_does_not_know_hide_no_other_value() -> None:
    keys = pa.array([b"a", WRONG, b"c"]).view(pa.string())
    values = pa.array([b"1", b"2", b"3"]).view(pa.string())
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), keys, values)
    times = pa.array([0, -(1 << 62), 1 << 62], pa.timestamp("us", tz="UTC"))

    assert python_values(maps) == [[("a", "1")], [(SHOWN, "2"), ("c", "3")]]
    assert [time.year for time in python_values(times)] == [1970, 1, 9999]
