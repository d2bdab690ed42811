"""The views in DuckDB say what the project's own commands say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from tests.kit.check_world import CheckWorld
from tests.kit.stores import HandMadeStore
from txmq.check.recheck import RecheckJob
from txmq.message.message import Message
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

VIEWS = ["txmq_transactions", "txmq_stuck", "txmq_topic_lag", "txmq_dead_letters"]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        yield made


def load(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    """As a user does: the printed statements are copied."""
    result = CliRunner().invoke(app, ["sql-views", store.location, "--engine", "duckdb"])
    assert result.exit_code == 0, result.output
    connection.execute(result.stdout)


def counts(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    return dict(connection.execute(query).fetchall())


def assert_equal_to_status(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    status = Admin(store).status()
    stuck = counts(connection, "SELECT state, count(*) FROM txmq_stuck GROUP BY state")
    names = {"PENDING": "open", "DISCARDED": "discarded", "INCOMPLETE": "incomplete"}
    assert stuck == {
        state: getattr(status, name) for state, name in names.items() if getattr(status, name)
    }
    lags = "SELECT topic, {} FROM txmq_topic_lag"
    visible = counts(connection, lags.format("visible_messages"))
    waiting = counts(connection, lags.format("half_messages"))
    assert {topic: count for topic, count in visible.items() if count} == status.messages
    assert {topic: count for topic, count in waiting.items() if count} == status.half_messages
    letters = "SELECT dead_letter_topic, count(*) FROM txmq_dead_letters GROUP BY ALL"
    dead = counts(connection, letters).get("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert dead == status.dead_letters
    ended = counts(connection, "SELECT state, count(*) FROM txmq_transactions GROUP BY state")
    assert ended.get("ROLLED_BACK", 0) == status.rolled_back


def test_figures_are_those_of_the_status(
    clean: HandMadeStore, connection: duckdb.DuckDBPyConnection
) -> None:
    store = Store.open(clean.location)
    load(connection, store)

    assert_equal_to_status(connection, store)
    assert Admin(store).status().dead_letters == 2


def test_new_store_has_empty_views(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    store = Store.create(tmp_path / "it's new")
    load(connection, store)

    assert [connection.execute(f"FROM {name}").fetchall() for name in VIEWS] == [[]] * len(VIEWS)


def test_stuck_transactions_are_those_that_open_lists(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    world = CheckWorld(tmp_path)
    world.prepare(2)
    world.clock.advance(10)
    RecheckJob(world.store, clock=world.clock).run_once()
    world.prepare(1)
    Publisher(world.store, clock=world.clock).run_once()
    load(connection, world.store)

    rows = "SELECT transaction_id, state, check_times, reason FROM txmq_stuck"
    expected = {
        (one.transaction_id, one.state.value, one.check_times or None, one.reason)
        for one in Operator(world.store, clock=world.clock).open_transactions()
    }
    assert {(*row[:2], row[2] or None, row[3]) for row in connection.execute(rows).fetchall()} == (
        expected
    )
    unasked = counts(connection, "SELECT reason, count(*) FROM txmq_stuck GROUP BY reason")
    assert unasked["NO_LISTENER"] == Admin(world.store).status().unasked["NO_LISTENER"] == 2


def test_topic_that_is_parked_lags(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    store = Store.create(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("fine", b"1"))
        producer.send([Message("parked", b"2"), Message("parked", b"3")])
        folder = Path(store.location, "topics")
        folder.mkdir(exist_ok=True)
        (folder / "parked").write_text("no folder")
        Publisher(store).run_once()
    load(connection, store)

    assert [parked.topic for parked in Admin(store).status().parked] == ["parked"]
    lag = counts(connection, "SELECT topic, unpublished_messages FROM txmq_topic_lag")
    assert lag == {"fine": 0, "parked": 2}


def test_topic_that_was_deleted_does_not_lag(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    store = Store.create(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop") as producer:
        for topic in ("gone", "stays"):
            producer.send(Message(topic, b"1"))
        Publisher(store).run_once()
        Topics(store).delete("gone", apply=True)
        load(connection, store)
        assert_equal_to_status(connection, store)
        lags = "SELECT topic, unpublished_messages FROM txmq_topic_lag"
        assert counts(connection, lags) == {"stays": 0}

        producer.send(Message("gone", b"again"))
    Publisher(store).run_once()
    load(connection, store)

    assert counts(connection, lags) == {"stays": 0, "gone": 0}
    assert_equal_to_status(connection, store)


@pytest.mark.parametrize(
    "path",
    ["x\x1b]0;me\x07.parquet", "x\n.read y.parquet", "x\u202e.parquet", "../../../../etc/passwd",
     "/etc/passwd", "http://evil/x.parquet", "x*.parquet", "x?.parquet", "x[a].parquet"],
)  # fmt: skip
def test_path_that_others_wrote_is_refused_and_nothing_printed(tmp_path: Path, path: str) -> None:
    store = Store.create(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("t", b"1"))
    Publisher(store).run_once()
    log = Path(store.location, "topics", "t", "_delta_log")
    newest = max(log.glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    follows = log / f"{int(newest.stem) + 1:020d}.json"
    follows.write_text(json.dumps({"add": {**add, "path": path}}))

    result = CliRunner().invoke(app, ["sql-views", store.location])

    assert result.exit_code != 0
    assert result.stdout == ""
    assert "topics/t: " in result.stderr
    assert not set(result.stderr) & set("\x1b\x07\u202e")
