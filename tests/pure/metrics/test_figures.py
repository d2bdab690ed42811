"""Figures have the names of the field, few labels, and a row in the docs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.consumer.lag import QueueLag
from txmq.ops.admin.status import AGE_BOUNDS_S, Lag, ParkedTopicStatus, Status, TableSize
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics import figures as module
from txmq.ops.metrics.figures import (
    OTHERS,
    Figure,
    FigureKind,
    Latencies,
    broker_figures,
    capped,
    store_figures,
)
from txmq.ops.metrics.formats import exposition

if TYPE_CHECKING:
    import pytest

DOCS = Path(__file__).parents[3] / "docs" / "monitoring.md"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def status() -> Status:
    parked = ParkedTopicStatus("tenant%orders", 7, "disk full", NOW, 3)
    return Status(
        location="/store", at=NOW, open=3, unasked={"NO_LISTENER": 2}, committed=5, rolled_back=1,
        discarded=1, incomplete=0, expired=2, messages={"orders": 4}, scheduled=1, dead_letters=2,
        oldest_open_half_age_s=61.0, older_than=dict.fromkeys(AGE_BOUNDS_S, 1),
        half_messages={"orders": 6}, delay_lag_s=0.5, tables={"half": TableSize(2, 9, 1_000)},
        op_version=8, settled=Lag(8, 0, 0.0), published=Lag(6, 2, 1.5), parked=(parked,),
        set_aside=(), unreadable=(), members={"billing": 1}, brokers=(),
    )  # fmt: skip


def all_figures() -> list[Figure]:
    lags = [
        QueueLag("g", "orders", queue, "", owner, 2, 5) for queue, owner in enumerate(["m", None])
    ]
    services = {"publisher": True, "maintenance": False}
    broker = broker_figures(BrokerCounts(asked=4, committed=3), Latencies(), services)
    return [*broker, *store_figures(status(), lags)]


def test_figures_are_those_of_the_status() -> None:
    text = exposition(all_figures())

    for line in (
        "txmq_open_transactions 3.0",
        'txmq_open_transactions_older_than{seconds="60"} 1.0',
        'txmq_half_messages{topic="orders"} 6.0',
        "txmq_commits_total 5.0",
        "txmq_publish_lag_seconds 1.5",
        'txmq_parked_topic_age_seconds{topic="tenant%orders"} 0.0',
        'txmq_table_files{table="half"} 2.0',
        'txmq_consumer_lag_messages{consumer_group="g",topic="orders"} 6.0',
        'txmq_consumer_ownerless_queues{consumer_group="g",topic="orders"} 1.0',
        'txmq_service_up{service="maintenance"} 0.0',
        'txmq_check_answers_total{answer="COMMIT"} 3.0',
    ):
        assert line in text.splitlines()


def test_names_follow_the_conventions_of_prometheus() -> None:
    for figure in all_figures():
        assert re.fullmatch(r"txmq_[a-z][a-z_]*[a-z]", figure.name)
        assert not figure.name.endswith("_total")
        assert figure.description.endswith(".")
        durations = figure.kind is FigureKind.HISTOGRAM or "_age_" in figure.name
        assert not durations or figure.name.endswith("_seconds")


def test_each_figure_has_a_row_in_the_docs() -> None:
    # Views have names of the same kind.
    figures_text = DOCS.read_text("utf-8").partition("## In SQL")[0]
    rows = set(re.findall(r"^\| `(txmq_\w+)`", figures_text, re.MULTILINE))
    ends = {FigureKind.COUNTER: "_total"}
    names = {figure.name + ends.get(figure.kind, "") for figure in all_figures()}

    assert names <= rows
    assert rows - names == {
        "txmq_count_timestamp_seconds", "txmq_count_duration_seconds", "txmq_count_failures",
    }  # fmt: skip


def test_labels_are_bounded_and_their_sum_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LABELS_MAX", 3)
    samples = {(f"t{number}",): float(number) for number in range(10)}

    kept = capped(samples)

    assert kept == {("t9",): 9.0, ("t8",): 8.0, (OTHERS,): 28.0}
    assert capped(dict(list(samples.items())[:3])) == dict(list(samples.items())[:3])


def test_name_of_a_topic_cannot_break_the_format() -> None:
    samples = {('a"b\nc\\',): 1.0}
    figure = Figure("txmq_topic_messages", FigureKind.GAUGE, "Visible.", ("topic",), samples)

    (line,) = [line for line in exposition([figure]).splitlines() if line.startswith("txmq_topic")]

    assert line == 'txmq_topic_messages{topic="a\\"b\\nc\\\\"} 1.0'
