"""Open-source Spark on stores and tables in a bucket, as docs/places.md says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit import s3
from tests.places.conftest import PROJECT
from tests.places.log_store_on_s3 import COMMITS
from tests.places.spark_on_s3 import FRAME_ROWS
from txmq.message.message import Message
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

RunSpark = Callable[..., Any]
DELTAS_OWN = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}


def test_each_way_of_txmq_with_spark_works_on_a_store_in_a_bucket(
    lake: str, run_spark: RunSpark
) -> None:
    told = run_spark("spark_on_s3.py", lake)

    assert told == {
        "read": FRAME_ROWS + 1,
        "streamed": FRAME_ROWS + 2,
        "orders": 2,
        "ends": ["COMMITTED", "ROLLED_BACK"],
        "violations": 0,
    }


def test_commands_of_the_page_serve_a_store_in_a_bucket(lake: str, submit: RunSpark) -> None:
    run = CliRunner().invoke
    assert run(app, ["init", f"{lake}/store"]).exit_code == 0
    store = Store.open(f"{lake}/store")
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"42"))

    submit(PROJECT / "jobs" / "broker.py", store.location, "--once")

    assert store.topics() == ["order-paid"]
    assert run(app, ["verify", store.location]).exit_code == 0


def test_commits_of_spark_and_of_a_rival_overwrite_nothing(lake: str, run_spark: RunSpark) -> None:
    told = run_spark("log_store_on_s3.py", lake)

    assert told["true"] == COMMITS
    assert (told["both"], told["neither"]) == (0, 0)
    assert told["spark"] + told["rival"] == COMMITS


def test_commit_of_spark_whose_answer_is_lost_counts_once(
    lake: str, server: s3.S3, run_spark: RunSpark, tmp_path: Path
) -> None:
    with s3.proxy(server, tmp_path / "requests", lost=0.2) as faulty:
        told = run_spark(
            "log_store_on_s3.py", lake, settings={"spark.hadoop.fs.s3a.endpoint": faulty.endpoint}
        )

    assert faulty.fates()["lost"]
    assert told["true"] == COMMITS


@pytest.mark.parametrize("way", ["options", "sql"])
def test_marker_is_refused_where_spark_overwrites_commits(
    lake: str, run_spark: RunSpark, way: str
) -> None:
    told = run_spark("refused_on_s3.py", lake, way, settings=DELTAS_OWN)

    assert told["error"] == "UnsupportedPlaceError"
    assert "s3_log_store_settings()" in told["text"]
    assert told["rows"] == 1
