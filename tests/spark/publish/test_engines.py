"""What every payload engine keeps: one suite over arrow and spark; auto is one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.builders import GROUP, halves, messages, op_row, transaction_id
from tests.kit.reading import are_gap_free, offsets, topic_rows
from txmq.delta.folder import TableFolder
from txmq.errors import EnvironmentProblemError, PayloadMissingError, StorageError
from txmq.ground.version import __version__
from txmq.message.ids import message_id
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish import engines
from txmq.publish.delay_service import DelayService
from txmq.publish.plan import make_plan
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult
from txmq.spark import executors, payload_engine
from txmq.spark.executors import OUTCOMES, TablePlace, as_own_error, file_outcome, written_files
from txmq.spark.payload_engine import SparkEngine
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.settled import mark_id
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock, before_commit, failing_commits

TOPIC = "order-paid"
COMMIT, DISCARD, RESUME = ClaimKind.COMMIT, ClaimKind.DISCARD, ClaimKind.RESUME
LARGE = 300_000


class World:
    """A store whose logs are written by hand, and publishers of one engine."""

    def __init__(self, store: Store, spark: Any, settings: dict[str, Any]) -> None:
        self.store = Store.open(store.location, store.config.replace(**settings))
        self.spark = spark
        self.commits = 0

    def half(self, *tables: pa.Table) -> None:
        """Halves in one file a partition, one commit."""
        write_deltalake(f"{self.store.location}/half", pa.concat_tables(tables), mode="append")

    def claim(self, *rows: Any) -> None:
        """Claims in one commit."""
        self.commits += 1
        self.store.tables.op_log().append(rows, 0, app_id="test", number=self.commits)

    def commit(self, *numbers: int) -> None:
        self.claim(*[op_row(number) for number in numbers])

    def publisher(self, clock: ManualClock | None = None) -> Publisher:
        return Publisher(self.store, spark=self.spark, clock=clock)

    def publish(self) -> PublishResult:
        """What a publisher that knows nothing from before shows."""
        return self.publisher().run_once()

    def rows(self, topic: str = TOPIC) -> list[dict[str, Any]]:
        return topic_rows(self.store, topic)

    def order(self, topic: str = TOPIC) -> list[str]:
        """The message ids of queue 0 in the order of their offsets."""
        return [row["message_id"] for row in self.rows(topic)]


SETTINGS = {
    "arrow": {"payload_engine": "arrow"},
    "arrow in pieces": {"payload_engine": "arrow", "publish_batch_rows": 2},
    "spark": {"payload_engine": "spark"},
}
ENGINES = [
    pytest.param("arrow"),
    pytest.param("arrow in pieces"),
    pytest.param("spark", marks=pytest.mark.needs_spark),
]


@pytest.fixture(params=ENGINES)
def world(request: pytest.FixtureRequest, store: Store) -> World:
    spark = None if "arrow" in request.param else request.getfixturevalue("spark")
    return World(store, spark, SETTINGS[request.param])


def ids(number: int, *sequences: int) -> list[str]:
    return [message_id(transaction_id(number), sequence) for sequence in sequences]


def in_queues(rows: pa.Table, queues: Sequence[int]) -> pa.Table:
    place = rows.schema.get_field_index("real_queue_id")
    return rows.set_column(place, rows.schema.field(place), pa.array(queues, pa.int32()))


# --- content --------------------------------------------------------------------------------

CONTENT = [
    Message(TOPIC, b""),
    Message(TOPIC, b"\x00\xff\xfe\x80"),
    Message(TOPIC, "žluťoučký 🐎".encode(), "jídlo", ["klíč", "🔑"], {"ä": "ö", "z": "a b"}, "ß"),
    Message(TOPIC, os.urandom(LARGE)),
    Message(TOPIC, b"{}", properties={"a": "1", "b": "2", "c": "3"}),
]
CONTENT_COLUMNS = ("topic", "body", "tags", "keys", "properties", "sharding_key")


def test_content_arrives_as_it_was_sent(world: World) -> None:
    world.half(halves(1, CONTENT))
    world.commit(1)

    world.publish()

    seen = [tuple(row[name] for name in CONTENT_COLUMNS) for row in world.rows()]
    assert seen == [
        (m.topic, m.body, m.tags, m.joined_keys, list(m.properties.items()), m.sharding_key)
        for m in CONTENT
    ]


def test_row_says_where_it_comes_from(world: World) -> None:
    world.half(halves(1, messages(2)))
    world.commit(1)

    world.publisher(ManualClock(START_MS + 5_000)).run_once()

    row = world.rows()[1]
    assert (row["transaction_id"], row["sequence"]) == (transaction_id(1), 1)
    assert (row["message_id"], row["producer_group"]) == (ids(1, 1)[0], GROUP)
    assert (row["op_version"], row["life"]) == (1, 0)
    assert row["born_timestamp"].timestamp() * 1000 == START_MS
    assert row["store_timestamp"].timestamp() * 1000 == START_MS + 5_000


def test_types_are_those_of_the_table(world: World) -> None:
    world.half(halves(1))
    world.commit(1)
    world.publish()
    table = DeltaTable(world.store.topic_location(TOPIC))
    before = table.schema()

    world.half(halves(2))
    world.commit(2)
    world.publish()

    table.update_incremental()
    assert table.schema() == before
    assert table.protocol().min_writer_version <= 4
    assert "timestampNtz" not in (table.protocol().reader_features or [])


def test_files_tell_which_rows_they_may_hold(world: World) -> None:
    world.half(halves(1, messages(3)))
    world.commit(1)

    world.publish()

    table = DeltaTable(world.store.topic_location(TOPIC))
    [action] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert action["num_records"] == 3
    assert (action["min.queue_offset"], action["max.queue_offset"]) == (0, 2)
    assert (action["min.op_version"], action["max.op_version"]) == (1, 1)
    assert action["min.transaction_id"] == action["max.transaction_id"] == transaction_id(1)


# --- offsets and order ------------------------------------------------------------------------


def test_offsets_have_no_gaps_in_any_queue_over_several_rounds(world: World) -> None:
    for number in range(3):
        world.half(in_queues(halves(number, messages(7)), [0, 1, 0, 2, 1, 0, number]))
        world.commit(number)
        world.publish()

    assert len(world.rows()) == 21
    assert are_gap_free(world.rows())
    assert sorted(offsets(world.rows())) == [0, 1, 2]


def test_order_is_that_of_claims_and_of_messages_in_them(world: World) -> None:
    world.half(halves(3, messages(2)), halves(1, messages(2)))
    world.half(halves(4, messages(1)), halves(2, messages(3)))
    world.commit(4, 3)
    world.commit(2)
    world.commit(1)

    world.publish()

    assert world.order() == [*ids(4, 0), *ids(3, 0, 1), *ids(2, 0, 1, 2), *ids(1, 0, 1)]


def test_pieces_of_several_files_are_copied_in_their_order(world: World) -> None:
    world.store = world.store.with_settings(world.store.config.replace(publish_batch_rows=3))
    rows = halves(1, messages(10))
    world.half(rows.slice(4, 6), halves(2, messages(5)))
    world.half(rows.slice(0, 4), halves(3, messages(1)))
    world.commit(2, 1, 3)

    result = world.publish()

    assert result.topic_commits == 1
    assert world.order() == [*ids(2, *range(5)), *ids(1, *range(10)), *ids(3, 0)]
    assert are_gap_free(world.rows())


def test_mark_and_next_offsets_are_in_the_commit_of_the_rows(world: World) -> None:
    world.half(in_queues(halves(1, messages(3)), [5, 5, 2]))
    world.commit(1)
    world.claim(op_row(9, ClaimKind.UNKNOWN))

    world.publish()

    op_id = world.store.tables.op_log().table.log.table_id
    topic = DeltaTable(world.store.topic_location(TOPIC))
    assert topic.version() == 1
    assert topic.transaction_version(mark_id(op_id)) == 2
    assert topic.transaction_version("txmq-offset/5") == 2
    assert topic.transaction_version("txmq-offset/2") == 1


# --- which rows -------------------------------------------------------------------------------


def test_uncommitted_rows_of_the_same_file_stay_hidden(world: World) -> None:
    world.half(*[halves(number, messages(2)) for number in range(10)])
    world.commit(7, 2)
    world.claim(op_row(3, ClaimKind.ROLLBACK), op_row(4, ClaimKind.UNKNOWN))

    world.publish()

    assert world.order() == [*ids(7, 0, 1), *ids(2, 0, 1)]


def test_head_without_payload_is_no_message(world: World) -> None:
    payload = halves(1, messages(3)).slice(1)
    origin = HalfOrigin(transaction_id(1), GROUP, 0, 6.0, START_MS)
    world.half(payload)
    world.half(half_table([HalfTransaction(origin, (), (), 2)]))
    world.commit(1)

    world.publish()

    assert world.order() == ids(1, 1, 2)


@pytest.mark.parametrize("together", [False, True])
def test_half_written_twice_is_one_message(world: World, *, together: bool) -> None:
    tables = [halves(1, messages(2)), halves(1, messages(2), queue_id=3)]
    for part in [tables] if together else [[table] for table in tables]:
        world.half(*part)
    world.commit(1)

    world.publish()

    assert world.order() == ids(1, 0, 1)


@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_message_is_shown_once_for_each_discarded_life(world: World, neighbours: int) -> None:
    world.half(
        halves(1, messages(2)), *[halves(2 + n, messages(2, "x")) for n in range(neighbours)]
    )
    world.claim(op_row(1, DISCARD, life=0), op_row(1, RESUME, life=1), op_row(1, DISCARD, life=1))

    world.publish()

    rows = world.rows(TRANS_CHECK_MAX_TIME_TOPIC)
    assert [(row["message_id"], row["life"]) for row in rows] == [
        *[(one, 0) for one in ids(1, 0, 1)],
        *[(one, 1) for one in ids(1, 0, 1)],
    ]
    assert [row["body"] for row in rows] == [b"body-0", b"body-1", b"body-0", b"body-1"]
    assert are_gap_free(rows)


def test_discarded_transaction_goes_to_the_dead_letters_with_its_real_topic(world: World) -> None:
    world.half(halves(1, [*messages(1), *messages(1, "stock")]))
    world.claim(op_row(1, DISCARD, life=0))

    world.publish()

    rows = world.rows(TRANS_CHECK_MAX_TIME_TOPIC)
    assert world.store.topics() == [TRANS_CHECK_MAX_TIME_TOPIC]
    assert [row["topic"] for row in rows] == [TOPIC, "stock"]


def test_resumed_and_committed_transaction_is_in_both(world: World) -> None:
    world.half(halves(1))
    world.claim(op_row(1, DISCARD, life=0), op_row(1, RESUME, life=1), op_row(1))

    world.publish()

    assert [row["life"] for row in world.rows(TRANS_CHECK_MAX_TIME_TOPIC)] == [0]
    assert [row["life"] for row in world.rows()] == [1]


def test_each_topic_of_a_transaction_gets_its_part(world: World) -> None:
    sent = [Message(["a", "b", "c"][number % 3], b"%d" % number) for number in range(9)]
    world.half(halves(1, sent))
    world.commit(1)

    world.publish()

    for place, topic in enumerate("abc"):
        assert [row["sequence"] for row in world.rows(topic)] == [place, place + 3, place + 6]
        assert are_gap_free(world.rows(topic))


def test_topic_that_is_behind_gets_only_what_it_lacks(world: World) -> None:
    world.half(halves(1, [*messages(1), *messages(1, "stock")]))
    world.commit(1)
    clock = ManualClock()
    with failing_commits(99, error=OSError("broken"), table="stock"):
        world.publisher(clock).run_once()
    assert (len(world.rows()), world.rows("stock")) == (1, [])
    clock.advance(3600)

    world.publisher(clock).run_once()

    assert (len(world.rows()), len(world.rows("stock"))) == (1, 1)


# --- files of any origin ------------------------------------------------------------------------


def test_halves_of_many_files_are_found(world: World) -> None:
    for number in range(12):
        world.half(halves(number, messages(2), queue_id=number % 4))
    world.commit(*range(11, -1, -1))

    world.publish()

    assert world.order() == [one for number in range(11, -1, -1) for one in ids(number, 0, 1)]
    assert {row["body"] for row in world.rows()} == {b"body-0", b"body-1"}


def test_halves_of_compacted_files_are_found(world: World) -> None:
    for number in range(6):
        world.half(halves(number, messages(2)))
    DeltaTable(f"{world.store.location}/half").optimize.compact()
    world.half(halves(6))
    world.commit(5, 6, 0)

    world.publish()

    assert world.order() == [*ids(5, 0, 1), *ids(6, 0), *ids(0, 0, 1)]


def test_row_groups_of_one_file_are_counted_through(world: World) -> None:
    world.half(*[halves(number, messages(100)) for number in range(300)])
    wanted = [299, 0, 150, 81, 82]
    world.commit(*wanted)

    world.publish()

    assert world.order() == [one for number in wanted for one in ids(number, *range(100))]
    assert all(row["body"] == b"body-%d" % row["sequence"] for row in world.rows())


@pytest.mark.needs_spark
@pytest.mark.parametrize("compacted", [False, True])
def test_halves_that_spark_wrote_are_found(world: World, spark: Any, *, compacted: bool) -> None:
    producer = TransactionProducer(world.store, producer_group=GROUP)
    frame = spark.range(50).selectExpr(
        "encode(concat('b', id), 'utf-8') AS body",
        "IF(id % 2 = 0, NULL, concat('key ', id)) AS keys",
        "IF(id % 3 = 0, NULL, map('id', string(id))) AS properties",
    )
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"first"))
        transaction.send_dataframe(frame.repartition(3), topic=TOPIC)
        transaction.prepare()
        transaction.commit()
    if compacted:
        DeltaTable(f"{world.store.location}/half").optimize.compact()

    world.publish()

    seen = {row["body"]: (row["keys"], dict(row["properties"] or [])) for row in world.rows()}
    assert seen == {b"first": (None, {})} | {
        b"b%d" % n: (f"key {n}" if n % 2 else None, {"id": f"{n}"} if n % 3 else {})
        for n in range(50)
    }
    assert len(world.rows()) == 51
    assert are_gap_free(world.rows())


# --- when it goes wrong -----------------------------------------------------------------------


def settled_facts(world: World) -> pa.Table:
    """The facts of all claims, with nothing published."""
    with failing_commits(999, error=OSError("broken"), table=TOPIC):
        world.publish()
    log = world.store.tables.settled_log(world.store.tables.op_log().table.log.table_id)
    return log.between(-1, log.mark)


@pytest.mark.parametrize("lost", ["sequence = 1", "sequence >= 0"])
def test_missing_payload_is_refused_and_nothing_is_written(world: World, lost: str) -> None:
    world.half(halves(1, messages(2)), halves(2, messages(2)))
    world.commit(1, 2)
    facts = settled_facts(world)

    DeltaTable(f"{world.store.location}/half").delete(
        f"transaction_id = '{transaction_id(1)}' AND {lost}"
    )

    with pytest.raises(PayloadMissingError, match=transaction_id(1)):
        make_plan(world.store.tables.half_log(), facts)
    assert world.rows() == []


def test_refused_swap_leaves_nothing_visible(world: World) -> None:
    world.half(halves(1, messages(2)))
    world.commit(1)
    rival: list[PublishResult] = []

    with before_commit(lambda: rival.append(world.publish()), table=TOPIC):
        result = world.publish()

    assert [one.published for one in rival] == [2]
    assert (result.refused, result.published) == (1, 0)
    assert world.order() == ids(1, 0, 1)
    assert DeltaTable(world.store.topic_location(TOPIC)).version() == 1


@pytest.mark.parametrize("after_commit", [False, True])
def test_swap_without_an_answer_is_made_once(world: World, *, after_commit: bool) -> None:
    world.half(halves(1, messages(2)))
    world.commit(1)

    with failing_commits(1, table=TOPIC, after_commit=after_commit):
        world.publish()

    assert world.order() == ids(1, 0, 1)


def test_topic_whose_bodies_cannot_be_read_waits_and_the_others_go_on(world: World) -> None:
    world.half(halves(1, [Message(TOPIC, os.urandom(LARGE))]))
    [broken] = DeltaTable(f"{world.store.location}/half").file_uris()
    world.half(halves(2, messages(1, "stock")))
    world.commit(1, 2)
    whole = Path(broken).read_bytes()
    half = len(whole) // 2
    Path(broken).write_bytes(whole[: half - 50_000] + bytes(100_000) + whole[half + 50_000 :])

    clock = ManualClock()
    result = world.publisher(clock).run_once()
    assert (result.parked, result.set_aside, world.rows()) == (0, 1, [])
    assert len(world.rows("stock")) == 1

    Path(broken).write_bytes(whole)
    clock.advance(3600)
    world.publisher(clock).run_once()
    assert world.order() == ids(1, 0)


# --- tasks --------------------------------------------------------------------------------------


@pytest.mark.needs_spark
def test_large_plan_is_cut_into_tasks_and_small_ones_are_put_together(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store, spark, {"payload_engine": "spark", "publish_batch_rows": 40})
    monkeypatch.setattr(payload_engine, "TASK_ROWS", 100)
    monkeypatch.setattr(payload_engine, "JOB_BYTES", 1)
    world.half(halves(1, messages(250)), halves(2, messages(130)))
    world.half(halves(3, messages(7)))
    world.commit(2)
    world.commit(3, 1)

    result = world.publish()

    assert (result.topic_commits, result.published) == (2, 387)
    assert world.order() == [*ids(2, *range(130)), *ids(3, *range(7)), *ids(1, *range(250))]
    assert are_gap_free(world.rows())
    counts = files_of(world)
    assert len(counts) > 3
    assert max(counts) <= 140


@pytest.mark.needs_spark
def test_each_partition_has_one_task(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store, spark, {"payload_engine": "spark"})
    monkeypatch.setattr(payload_engine, "TASK_ROWS", 10)
    monkeypatch.setattr(payload_engine, "TASK_ROWS_LEAST", 1)
    from pyspark.sql.functions import spark_partition_id

    partitions: list[int] = []
    outcomes = SparkEngine._outcomes

    def counted(self: SparkEngine, copy: Any, job: Any) -> Any:
        frame = outcomes(self, copy, job)
        partitions.extend(row[0] for row in frame.select(spark_partition_id()).collect())
        return frame

    monkeypatch.setattr(SparkEngine, "_outcomes", counted)
    world.half(halves(1, messages(200)))
    world.commit(1)

    world.publish()

    assert len(partitions) >= 10
    assert sorted(partitions) == list(range(len(partitions)))


@pytest.mark.needs_spark
@pytest.mark.parametrize(
    "facts", [{"stats": None}, {"size": 10**18}, {"size": 0}, {"stats": '{"numRecords": 0}'}]
)
def test_sizes_that_a_commit_of_others_names_make_no_flood_of_tasks(
    store: Store, spark: Any, jobs: list[int], facts: dict[str, Any]
) -> None:
    world = World(store, spark, {"payload_engine": "spark"})
    world.half(halves(1, messages(320)))
    (commit,) = Path(store.location, "half", "_delta_log").glob("*1.json")
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"] |= facts
    commit.write_text("\n".join(map(json.dumps, lines)))
    world.commit(1)

    world.publish()

    assert len(world.rows()) == 320
    assert sum(jobs) <= 11


def with_strange(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, pa.field(name, values.type), values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tags", pa.array([b"\xff\xfe"])),
        ("born_timestamp", pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))),
        ("body", pa.array([[1]])),
        ("properties", pa.array(["text"])),
    ],
)
def test_row_that_cannot_be_copied_sets_its_transaction_aside(
    world: World, name: str, values: pa.Array
) -> None:
    world.half(halves(1))
    [path] = DeltaTable(f"{world.store.location}/half").file_uris()
    pq.write_table(with_strange(pq.ParquetFile(path).read(), name, values), path)
    world.half(halves(2))
    world.commit(1, 2)

    result = world.publish()

    assert (result.set_aside, result.parked, world.order()) == (1, 0, ids(2, 0))


@pytest.mark.needs_spark
def test_session_that_was_stopped_parks_the_topic_and_blames_nobody(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store, spark, {"payload_engine": "spark"})
    world.half(halves(1))
    world.commit(1)
    # As the methods of a session do that has ended.
    stopped = Mock(side_effect=AttributeError("'NoneType' object has no attribute 'sc'"))
    monkeypatch.setattr(type(spark), "createDataFrame", stopped)
    monkeypatch.setattr(type(spark), "range", stopped)

    result = world.publish()

    assert (result.parked, result.set_aside, world.rows()) == (1, 0, [])


@pytest.mark.needs_spark
def test_executors_that_cannot_read_what_this_process_reads_park_the_topic(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(store, spark, {"payload_engine": "spark"})
    world.half(halves(1))
    world.commit(1)
    [path] = DeltaTable(f"{store.location}/half").file_uris()
    outcomes = SparkEngine._outcomes

    def beside_a_lost_file(self: SparkEngine, copy: Any, job: Any) -> Any:
        Path(path).rename(f"{path}.away")
        frame = outcomes(self, copy, job)
        rows = frame.collect()
        Path(f"{path}.away").rename(path)
        return spark.createDataFrame(rows, OUTCOMES)

    monkeypatch.setattr(SparkEngine, "_outcomes", beside_a_lost_file)

    result = world.publish()

    assert (result.parked, result.set_aside, world.rows()) == (1, 0, [])
    assert "an executor of Spark cannot read" in caplog.text


@pytest.mark.needs_spark
def test_what_executors_lacked_is_looked_for_again_at_the_next_try(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    world = World(store, spark, {"payload_engine": "spark"})
    world.half(halves(1))
    world.commit(1)
    publisher = world.publisher(clock)
    with monkeypatch.context() as other_version:
        other_version.setattr(executors, "__version__", "0.0.1")
        assert publisher.run_once().parked == 1
    clock.advance(60)

    publisher.run_once()

    assert world.order() == ids(1, 0)


@pytest.mark.needs_spark
def test_error_of_a_task_shows_no_token(spark: Any) -> None:
    def refused() -> Any:
        raise OSError("InvalidToken: <Token-0>a-secret-token</Token-0>")

    def tasks(batches: Any) -> Any:
        for _ in batches:
            yield file_outcome("half", refused)

    with pytest.raises(StorageError) as caught, as_own_error("half"):
        written_files(spark.range(1).mapInArrow(tasks, OUTCOMES), TableFolder("half", "/nowhere"))

    chain = f"{caught.value} {caught.value.__cause__}"
    assert "a-secret-token" not in chain


@pytest.mark.needs_spark
def test_tasks_copy_delayed_messages_too(store: Store, spark: Any) -> None:
    world = World(store, spark, {"payload_engine": "spark"})
    clock = ManualClock()
    with TransactionProducer(world.store, producer_group=GROUP, clock=clock) as producer:
        producer.send(Message(TOPIC, b"now"))
        producer.send(Message(TOPIC, b"later", delay_s=60))

    world.publisher(clock).run_once()
    assert [row["body"] for row in world.rows()] == [b"now"]
    clock.advance(61)
    DelayService(world.store, clock=clock).run_once()
    world.publisher(clock).run_once()

    assert [row["body"] for row in world.rows()] == [b"now", b"later"]


# --- which engine ------------------------------------------------------------------------------


def files_of(world: World) -> list[int]:
    """The messages in each file of the topic."""
    table = DeltaTable(world.store.topic_location(TOPIC))
    return [
        int(n) for n in pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
    ]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks of each job of the spark engine."""
    counts: list[int] = []
    run = SparkEngine._run

    def counted(self: SparkEngine, name: str, copy: Any, job: Any) -> Any:
        counts.append(len(job))
        return run(self, name, copy, job)

    monkeypatch.setattr(SparkEngine, "_run", counted)
    return counts


@pytest.mark.needs_spark
@pytest.mark.parametrize(
    ("spark_bytes", "cores", "is_spark"), [(1, 1, True), (1 << 40, 1, False), (1, 10_000, False)]
)
def test_auto_chooses_by_size_and_cores(  # noqa: PLR0913, PLR0917 - a table of cases
    store: Store, spark: Any, jobs: list[int], monkeypatch: pytest.MonkeyPatch,
    spark_bytes: int, cores: int, is_spark: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    monkeypatch.setattr(engines, "ARROW_CORES", cores)
    world = World(store, spark, {"payload_engine_spark_bytes": spark_bytes})
    world.half(halves(1))
    world.commit(1)

    world.publish()

    assert (len(world.rows()), bool(jobs)) == (1, is_spark)


@pytest.mark.needs_spark
def test_auto_copies_here_where_executors_cannot(
    store: Store, spark: Any, jobs: list[int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(executors, "__version__", "0.0.1")
    world = World(store, spark, {"payload_engine_spark_bytes": 1})
    world.half(halves(1))
    world.commit(1)

    world.publish()

    assert (len(world.rows()), jobs) == (1, [])
    assert f"an executor of Spark has txmq {__version__}, and this process 0.0.1" in caplog.text


@pytest.mark.needs_spark
def test_executor_that_finds_no_table_parks_the_topic(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place_of = TablePlace.of
    elsewhere = lambda table: replace(place_of(table), location=f"{table.location}-elsewhere")  # noqa: E731
    monkeypatch.setattr(TablePlace, "of", elsewhere)
    world = World(store, spark, {"payload_engine": "spark"})
    world.half(halves(1))
    world.commit(1)

    result = world.publish()

    assert (result.parked, result.set_aside, world.rows()) == (1, 0, [])
    assert "does not find version 0 of" in caplog.text


def test_auto_without_spark_is_arrow(store: Store, jobs: list[int]) -> None:
    world = World(store, None, {"payload_engine_spark_bytes": 1})
    world.half(halves(1))
    world.commit(1)

    world.publish()

    assert (len(world.rows()), jobs) == (1, [])


def test_spark_engine_without_spark_says_what_to_do(store: Store) -> None:
    world = World(store, None, {"payload_engine": "spark"})

    with pytest.raises(EnvironmentProblemError, match="Pass spark="):
        world.publish()
