from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import transaction_id
from tests.kit.reading import delta_rs
from txmq.delta.parquet import write_file
from txmq.delta.table_writer import TableWriter
from txmq.errors import BodySchemaConflictError, CommitRefusedError
from txmq.message.body_schema import BodySchema
from txmq.store.schemas import TOPIC
from txmq.store.settled import NOTHING
from txmq.store.store import Store
from txmq.store.topic import TopicLog, body_schema_in, offsets_in_order, set_body_schema

OP_ID = "op-table"


def visible(*offsets: int, queue: int = 0) -> pa.Table:
    rows = [
        {"transaction_id": transaction_id(n), "sequence": 0, "queue_id": queue, "queue_offset": n}
        for n in offsets
    ]
    return pa.Table.from_pylist(rows, schema=TOPIC.columns)


def body_of(name: str) -> BodySchema:
    record = {"type": "record", "name": "Body", "fields": [{"name": name, "type": "long"}]}
    return BodySchema.parse({"encoding": "json", "schema": record})


@pytest.fixture
def topic(store: Store) -> TopicLog:
    store.tables.create_topic("orders")
    return store.tables.topic_log("orders", OP_ID)


def test_new_topic_starts_at_offset_zero_without_a_mark(topic: TopicLog) -> None:
    assert topic.mark == NOTHING
    assert topic.next_offsets([0, 7]) == {0: 0, 7: 0}


def test_messages_mark_and_offsets_are_one_commit(topic: TopicLog) -> None:
    topic.swap(visible(0, 1, queue=3), 5, {3: 2})

    topic.table.reopen()
    assert topic.table.version == 1
    assert (topic.mark, topic.next_offsets([3, 4])) == (5, {3: 2, 4: 0})


def test_offsets_outlive_the_messages(topic: TopicLog) -> None:
    topic.swap(visible(0, 1), 5, {0: 2})
    delta_rs(topic.table.reopen().folder).delete()
    delta_rs(topic.table.reopen().folder).create_checkpoint()

    topic.table.reopen()

    assert topic.table.files.all() == []
    assert topic.next_offsets([0]) == {0: 2}


def test_body_schema_is_refused_where_messages_come_after_its_columns(
    topic: TopicLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of("amount")
    add_columns, offsets = TableWriter.add_columns, iter([0])

    def overtaken(table: TableWriter, columns: Sequence[pa.Field], *, directly: bool) -> None:
        add_columns(table, columns, directly=directly)
        store.tables.topic_log("orders", OP_ID).swap(visible(next(offsets)), 1, {0: 1})

    monkeypatch.setattr(TableWriter, "add_columns", overtaken)

    with pytest.raises(BodySchemaConflictError, match="has messages"):
        set_body_schema(topic.table, "orders", lambda: body)

    assert next(offsets, None) is None
    assert body_schema_in(topic.table.refresh()) is None


@pytest.mark.parametrize("step", ["add_columns", "set_properties"])
def test_body_schema_is_refused_where_messages_come_right_before_its_commit(
    topic: TopicLog, store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before, change, offsets = topic.table.log.column_names, getattr(TableWriter, step), iter([0])

    def overtaken(table: TableWriter, *values: Any, **settings: Any) -> None:
        for offset in offsets:
            store.tables.topic_log("orders", OP_ID).swap(visible(offset), 1, {0: 1})
        change(table, *values, **settings)

    monkeypatch.setattr(TableWriter, step, overtaken)

    with pytest.raises(BodySchemaConflictError, match="has messages"):
        set_body_schema(topic.table, "orders", lambda: body_of("amount"))

    assert body_schema_in(topic.table.refresh()) is None
    assert (topic.table.log.column_names == before) == (step == "add_columns")


def test_body_schema_is_set_again_where_another_one_was_faster(
    topic: TopicLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, rival = body_of("amount"), store.tables.topic_log("orders", OP_ID).table
    set_properties, others = TableWriter.set_properties, iter([body_of("count")])

    def overtaken(table: TableWriter, values: Mapping[str, str], *, directly: bool) -> None:
        if other := next(others, None):
            set_body_schema(rival, "orders", lambda: other)
        set_properties(table, values, directly=directly)

    monkeypatch.setattr(TableWriter, "set_properties", overtaken)

    set_body_schema(topic.table, "orders", lambda: body)

    assert body_schema_in(topic.table.refresh()) == body
    assert {"amount", "count"} <= set(topic.table.log.column_names)


def test_of_two_publishers_the_second_is_refused(topic: TopicLog, store: Store) -> None:
    rival = store.tables.topic_log("orders", OP_ID)
    assert topic.mark == rival.mark

    rival.swap(visible(0), 1, {0: 1})

    with pytest.raises(CommitRefusedError):
        topic.swap(visible(0), 1, {0: 1})


def test_of_two_publishers_with_files_the_second_is_refused(topic: TopicLog, store: Store) -> None:
    rival = store.tables.topic_log("orders", OP_ID)
    assert topic.mark == rival.mark
    file = write_file([visible(0)], TOPIC.columns, topic.table.folder.filesystem, ["queue_offset"])

    rival.swap_files([file], 1, {0: 1})

    with pytest.raises(CommitRefusedError):
        topic.swap_files([file], 1, {0: 1})
    assert len(rival.table.reopen().files.all()) == 1


def naive(queues: list[int | None], start: dict[int, int]) -> tuple[list[int], dict[int, int]]:
    following = dict(start)
    offsets = []
    for queue in queues:
        name = queue or 0
        offsets.append(following.get(name, 0))
        following[name] = offsets[-1] + 1
    touched = {queue or 0 for queue in queues}
    return offsets, {name: following[name] for name in touched}


QUEUES = st.lists(st.none() | st.integers(0, 5), max_size=30)


@given(QUEUES, st.dictionaries(st.integers(0, 6), st.integers(0, 2**40)), st.integers(1, 4))
def test_offsets_are_those_of_a_naive_loop(
    queues: list[int | None], start: dict[int, int], chunks: int
) -> None:
    parts = [queues[n::chunks] for n in range(chunks)]
    column = pa.chunked_array([pa.array(part, pa.int32()) for part in parts])

    offsets, after = offsets_in_order(column, start)

    assert (offsets.tolist(), after) == naive([queue for part in parts for queue in part], start)


def test_offsets_of_nothing_are_nothing() -> None:
    offsets, after = offsets_in_order(pa.chunked_array([], pa.int32()), {0: 5})

    assert (len(offsets), after) == (0, {})


def test_offsets_go_on_where_the_last_commit_ended() -> None:
    column = pa.chunked_array([[1, 0, 1]], pa.int32())

    first, after = offsets_in_order(column, {})
    second, _ = offsets_in_order(column, after)

    assert first.tolist() == [0, 0, 1]
    assert second.tolist() == [2, 1, 3]
