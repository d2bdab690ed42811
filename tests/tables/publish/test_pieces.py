"""A round plans piece by piece: memory holds one piece, and what is shown is the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.builders import halves, op_row, transaction_id
from tests.kit.reading import are_gap_free, bodies, topic_rows
from txmq.delta.file_rows import SMALL_BYTES
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.table import Table
from txmq.message.lifecycle import DeliveryState, TransactionState
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.publish import engines, message_rows, plan
from txmq.publish.plan import Plan, Plans, plans_of
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.op import op_table
from txmq.store.schemas import SETTLED
from txmq.store.store import Store
from txmq.verify import verify

TOPICS = ("a", "b")
NUMBERS = count(1)
COMMITTED, DISCARDED = TransactionState.COMMITTED.value, TransactionState.DISCARDED.value


# --- halves and facts ---------------------------------------------------------------------------


def half_rows(number: int, messages: int, more: bytes = b"") -> pa.Table:
    sent = [Message(TOPICS[place % 2], b"%02d" % place + more) for place in range(messages)]
    return halves(number, sent)


def half_file(table: Table, rows: pa.Table, group_rows: int) -> NewFile:
    """One file with row groups of so many rows."""
    partition = {"queue_id": "0", "store_date": str(rows["store_date"][0].as_py())}
    rows = rows.drop_columns(["queue_id", "store_date"])
    groups = [rows.slice(first, group_rows) for first in range(0, rows.num_rows, group_rows)]
    statistics = table.schema.statistics_columns
    return write_file(groups, rows.schema, table.folder.filesystem, statistics, partition)


def facts_table(facts: Sequence[dict[str, Any]]) -> pa.Table:
    rows = [
        {"life": 0, "source": "producer", "settled_timestamp": 0, "op_timestamp": 0, **fact}
        for fact in facts
    ]
    return pa.Table.from_pylist(rows, schema=SETTLED.columns)


def shown(plans: Sequence[Plan]) -> list[tuple[Any, ...]]:
    names = ("topic", "queue_id", "op_version", "ordinal", "sequence")
    return [
        row
        for each in plans
        for row in zip(*(each.rows[name].to_pylist() for name in names), strict=True)
    ]


def of_all_topics(plans: Plans) -> list[tuple[Any, ...]]:
    return [row for topic in plans.topics() for row in shown(list(plans.of_topic(topic)))]


TRANSACTION = st.fixed_dictionaries(
    {
        "messages": st.integers(0, 9),
        "states": st.sampled_from(
            [(COMMITTED,), (COMMITTED,), (DISCARDED, COMMITTED), (DISCARDED, DISCARDED)]
        ),
        "cut": st.integers(1, 9),
        "is_doubled": st.booleans(),
        "null_at": st.none() | st.integers(0, 8),
        "group_rows": st.integers(1, 4),
    }
)


def without_sequence(rows: pa.Table, place: int | None) -> pa.Table:
    """As another program may write them."""
    is_null = pa.array([number == place for number in range(rows.num_rows)], pa.bool_())
    values = pc.if_else(is_null, pa.scalar(None, pa.int64()), rows["sequence"])
    column = rows.schema.get_field_index("sequence")
    return rows.set_column(column, rows.schema.field(column), values)


@pytest.fixture(scope="module")
def half_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.create(tmp_path_factory.mktemp("half") / "store")


def written(store: Store, drawn: Sequence[dict[str, Any]], gaps: Sequence[int]) -> pa.Table:
    """Write the halves of transactions in files that mix them; return the facts about them."""
    table, facts, parts = store.tables.table_at("half"), [], list[list[pa.Table]]([[], []])
    group_rows = drawn[0]["group_rows"]
    for one in drawn:
        number = next(NUMBERS)
        rows = without_sequence(half_rows(number, one["messages"]), one["null_at"])
        parts[0].append(rows.slice(0, one["cut"]))
        parts[1].append(rows.slice(0 if one["is_doubled"] else one["cut"]))
        facts += [{"transaction_id": transaction_id(number), "state": s} for s in one["states"]]
    tables = [pa.concat_tables(some) for some in parts]
    files = [half_file(table, rows, group_rows) for rows in tables if rows.num_rows]
    table.writer.append_files(files, app_id="test", number=next(NUMBERS))
    version = ordinal = 0
    for fact, gap in zip(facts, gaps, strict=False):
        version, ordinal = version + gap, 0 if gap else ordinal + 1
        fact |= {"op_version": version, "ordinal": ordinal}
    return facts_table(facts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    drawn=st.lists(TRANSACTION, min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 1), min_size=10, max_size=10),
    piece_rows=st.integers(1, 12),
    large_rows=st.sampled_from([1, 3, 200_000]),
    kept_rows=st.sampled_from([0, 5, 1_000_000]),
)
def test_pieces_together_are_the_whole(  # noqa: PLR0913, PLR0917
    half_store: Store,
    drawn: list[dict[str, Any]],
    gaps: list[int],
    piece_rows: int,
    large_rows: int,
    kept_rows: int,
) -> None:
    facts, half = written(half_store, drawn, gaps), half_store.tables.half_log()
    whole = plans_of(half, facts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_rows, "PIECE_ROWS", large_rows)
        patch.setattr(plan, "KEPT_ROWS", kept_rows)

        pieces = plans_of(half, facts, piece_rows=piece_rows, is_all=True)
        steps = list(plans_step_by_step(half, facts, piece_rows))

        assert (pieces.missing, pieces.through) == (whole.missing, None)
        assert of_all_topics(pieces) == of_all_topics(whole)
        for topic in whole.topics():
            stepwise = [row for one in steps for row in shown(list(one.of_topic(topic)))]
            assert stepwise == shown(list(whole.of_topic(topic)))
        sizes = [each.rows.num_rows for each in pieces.of_topic("a")]
        assert max(sizes, default=0) <= piece_rows * 3 // 2 + 1


def plans_step_by_step(half: Any, facts: pa.Table, piece_rows: int) -> Iterator[Plans]:
    """Plan as rounds do: each begins behind the version up to which the one before has planned."""
    while facts.num_rows:
        plans = plans_of(half, facts, piece_rows=piece_rows)
        assert plans.facts.num_rows > 0
        yield plans
        if plans.through is None:
            return
        version = facts["op_version"].to_numpy()
        facts = facts.filter(pa.array(version > plans.through))


def test_a_lost_half_is_missed_whichever_piece_it_is_in(store: Store) -> None:
    table = store.tables.table_at("half")
    for lost in range(6):
        number = next(NUMBERS)
        rows = half_rows(number, 6)
        kept = pa.concat_tables([rows.slice(0, lost), rows.slice(lost + 1)])
        table.writer.append(kept, app_id="test", number=number)
        fact = {"transaction_id": transaction_id(number), "state": COMMITTED}
        facts = facts_table([{**fact, "op_version": 1, "ordinal": 0}])

        plans = plans_of(store.tables.half_log(), facts, piece_rows=2)

        assert list(plans.missing) == [transaction_id(number)]
        assert of_all_topics(plans) == []


def test_a_file_that_holds_none_of_the_transactions_is_read_in_vain(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_rows, "PIECE_ROWS", 4)
    table, (first, wanted, last) = store.tables.table_at("half"), (next(NUMBERS) for _ in range(3))
    # By the range of its ids the first file may hold the transaction of the second one.
    others = pa.concat_tables([half_rows(first, 2), half_rows(last, 1)])
    for number, rows in enumerate((others, half_rows(wanted, 3)), 1):
        table.writer.append(rows, app_id="test", number=number)
    fact = {"transaction_id": transaction_id(wanted), "state": COMMITTED}
    facts = facts_table([{**fact, "op_version": 1, "ordinal": 0}])

    plans = plans_of(store.tables.half_log(), facts, piece_rows=2)

    assert len(of_all_topics(plans)) == 3


@pytest.mark.parametrize(("damaged", "piece_rows"), [((2,), 100), ((0, 2), 3), ((2,), 3)])
def test_a_dead_letter_is_not_shown_in_part_beside_a_damaged_row_group(
    store: Store, monkeypatch: pytest.MonkeyPatch, damaged: tuple[int, ...], piece_rows: int
) -> None:
    monkeypatch.setattr(message_rows, "PIECE_ROWS", 1)
    table, (first, second) = store.tables.table_at("half"), (next(NUMBERS), next(NUMBERS))
    rows = half_rows(second, 8)
    large = half_file(table, pa.concat_tables([half_rows(first, 8), rows.slice(0, 4)]), 4)
    others = half_file(table, rows.slice(4), 4)
    table.writer.append_files([large, others], app_id="test", number=1)
    for group in damaged:
        spoil(Path(store.location, "half", large.path), group)
    facts = facts_table(
        [
            {"transaction_id": transaction_id(n), "state": DISCARDED, "op_version": 1, "ordinal": n}
            for n in (first, second)
        ]
    )

    plans = plans_of(store.tables.half_log(), facts, piece_rows=piece_rows, is_all=True)

    waiting = {transaction_id(second)} | ({transaction_id(first)} if 0 in damaged else set())
    assert waiting <= set(plans.missing)
    assert len(of_all_topics(plans)) == 8 * (2 - len(plans.missing))


def spoil(path: Path, group: int) -> None:
    """Overwrite the pages of one row group; the footer stays."""
    metadata, content = pq.read_metadata(path).row_group(group), bytearray(path.read_bytes())
    for chunk in map(metadata.column, range(metadata.num_columns)):
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        size_bytes = chunk.total_compressed_size
        content[begin : begin + size_bytes] = b"\xff" * size_bytes
    path.write_bytes(content)


def test_deliveries_are_planned_in_pieces(store: Store) -> None:
    number, table = next(NUMBERS), store.tables.table_at("half")
    table.writer.append(half_rows(number, 9), app_id="test", number=1)
    fact = {"transaction_id": transaction_id(number), "state": DeliveryState.DELIVERED.value}
    facts = facts_table(
        [
            {**fact, "op_version": 1, "ordinal": place, "sequences": [place * 3, place * 3 + 2]}
            for place in range(3)
        ]
    )

    plans = plans_of(store.tables.half_log(), facts, piece_rows=3, is_all=True)

    assert len(plans._pieces) == 3
    assert [row[-1] for row in of_all_topics(plans)] == [0, 2, 6, 8, 3, 5]


# --- rounds -------------------------------------------------------------------------------------


def commit(store: Store, *numbers: int) -> None:
    table = store.tables.table_at("op")
    table.writer.append(op_table([op_row(n) for n in numbers], 0), app_id="op", number=numbers[0])


@pytest.fixture
def small_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Rounds of four messages, whose plans are made again for each use."""
    monkeypatch.setattr(plan, "KEPT_ROWS", 0)
    return Store.create(tmp_path / "store", Config(publish_batch_rows=4))


def append_halves(store: Store, *tables: pa.Table) -> None:
    for number, rows in enumerate(tables, 1):
        store.tables.table_at("half").writer.append(rows, app_id="half", number=number)


def test_a_transaction_larger_than_a_round_is_shown_in_one_commit(small_rounds: Store) -> None:
    rows = half_rows(1, 30)
    append_halves(small_rounds, *(rows.slice(first, 7) for first in range(0, 30, 7)))
    commit(small_rounds, 1)

    result = Publisher(small_rounds).run_once()

    # One to each of the two topics.
    assert (result.published, result.topic_commits) == (30, 2)
    for first, topic in enumerate(TOPICS):
        assert bodies(small_rounds, topic) == [b"%02d" % n for n in range(first, 30, 2)]
        assert are_gap_free(topic_rows(small_rounds, topic))
    assert verify(small_rounds.location).is_clean


def test_a_round_ends_with_its_messages_and_not_with_its_transactions(small_rounds: Store) -> None:
    append_halves(small_rounds, *(half_rows(number, 3) for number in range(1, 7)))
    for number in range(1, 7):
        commit(small_rounds, number)

    publisher = Publisher(small_rounds)
    result = publisher.run_once()

    assert result.published == 18
    # Six transactions of three messages: never more than two of them in one commit of a topic.
    assert result.topic_commits >= 2 * 3
    assert verify(small_rounds.location).is_clean


def test_a_half_file_that_goes_between_look_and_copy_parks_and_is_shown_once_it_is_back(
    small_rounds: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too large for what is kept of small files.
    rows = half_rows(1, 12, os.urandom(SMALL_BYTES))
    append_halves(small_rounds, *(rows.slice(first, 3) for first in range(0, 12, 3)))
    commit(small_rounds, 1)
    (*_, last) = small_rounds.tables.table_at("half").files.all()
    path = Path(small_rounds.location, "half", last.path)
    content = path.read_bytes()
    copied = engines.copied

    def without_a_file(*arguments: Any, **more: Any) -> Any:
        path.unlink(missing_ok=True)
        return copied(*arguments, **more)

    publisher = Publisher(small_rounds)
    monkeypatch.setattr(engines, "copied", without_a_file)
    assert publisher.run_once().published == 0
    monkeypatch.setattr(engines, "copied", copied)
    assert not any(topic_rows(small_rounds, topic) for topic in small_rounds.topics())
    path.write_bytes(content)

    Publisher(small_rounds).run_once()
    Publisher(small_rounds).run_once()

    told = Admin(small_rounds).status()
    assert (told.parked, [len(bodies(small_rounds, t)) for t in TOPICS]) == ((), [6, 6])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    files=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    after=st.integers(-1, 9),
    rows=st.integers(1, 5),
)
def test_a_step_goes_on_and_ends_with_the_version_that_makes_it_full(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], after: int, rows: int
) -> None:
    store = Store.create(tmp_path_factory.mktemp("steps") / "store")
    log = store.tables.settled_log(store.tables.table_at("op").log.table_id)
    for number, versions in enumerate(files, 1):
        some = [
            {"transaction_id": "t", "state": COMMITTED, "op_version": version, "ordinal": place}
            for place, version in enumerate(versions)
        ]
        log.table.writer.append(facts_table(some), app_id="test", number=number)
    through = 10

    step = log.step(after, through, rows)

    all_versions = [version for versions in files for version in versions if version > after]
    assert after < step <= through
    assert sum(version < step for version in all_versions) < rows or step == after + 1
