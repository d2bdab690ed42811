"""A real Prometheus scrapes a broker that is killed; its figures are those of the tables."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.books import GROUP, SETTINGS, Books, sell
from tests.kit.counted import OF_TOPIC, counted
from tests.kit.forked import Forked, forked
from tests.kit.reading import wait_until
from tests.kit.s3 import free_port
from tests.kit.truth import assert_topics_tell_the_truth, drain
from tests.places import prometheus as kit
from tests.places.prometheus import Prometheus
from txmq.ops.broker import Broker, run_until_signal
from txmq.ops.metrics.server import MetricsEndpoint
from txmq.store.config import Config
from txmq.store.store import Store

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "txmq-alerts.yaml"
LIVES, ORDERS = 4, 20

pytestmark = pytest.mark.skipif(not kit.is_there(), reason="Prometheus is not on this machine")


def serve(location: str, path: str, port: str) -> None:
    endpoint = MetricsEndpoint(f"127.0.0.1:{port}")
    broker = Broker(Store.open(location), listeners={GROUP: Books(path)}, metrics=endpoint)
    run_until_signal(broker.start)


@contextmanager
def serving(store: Store, books: Books, port: int) -> Iterator[Forked]:
    process = forked(serve, store.location, books.path, str(port))
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    timeouts = {"transaction_timeout_s": 2.0, "check_trigger_interval_s": 0.1}
    return Store.create(tmp_path / "store", Config(**{**SETTINGS, **timeouts}))


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "books.db")


def is_counted_after(server: Prometheus, moment_s: float) -> bool:
    return max(server.ask("txmq_count_timestamp_seconds").values(), default=0.0) > moment_s


def test_figures_in_prometheus_are_those_of_the_tables_after_kills(
    store: Store, books: Books, tmp_path: Path
) -> None:
    port = free_port()
    with kit.prometheus(tmp_path, port, ALERTS) as server:
        for life in range(LIVES):
            with serving(store, books, port):
                sell(store, books, ORDERS, ORDERS * life)
        with serving(store, books, port):
            drain(store, books)
            done_s = time.time()
            wait_until(lambda: is_counted_after(server, done_s), 120, "a count after the end")

            truth = counted(store)
            assert truth["txmq_commits_total"] + truth["txmq_rollbacks_total"] == LIVES * ORDERS
            shown = {name: server.ask(name) for name in truth}
            labels = {name: ("order-paid",) if name in OF_TOPIC else () for name in truth}
            # A topic without open halves has no figure.
            assert {name: shown[name].get(labels[name], 0.0) for name in truth} == truth
            for expression in board_expressions():
                server.ask(expression)
            assert "TxmqBrokerAway" not in server.alerts()
        wait_until(lambda: "TxmqBrokerAway" in server.alerts(), 400, "the alert")
    assert_topics_tell_the_truth(store, books)


def test_rules_are_right() -> None:
    for words in (["check", "rules", ALERTS], ["test", "rules", cases_of_alerts()]):
        command = [kit.promtool(), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_that_fires_it_and_one_that_does_not() -> None:
    names = re.findall(r"alert: (\w+)", ALERTS.read_text("utf-8"))
    tests = cases_of_alerts().read_text("utf-8")

    for name in names:
        lines = [line for line in tests.splitlines() if f"alertname: {name}," in line]
        assert {line.endswith("exp_alerts: []}") for line in lines} == {True, False}, name


def cases_of_alerts() -> Path:
    return ALERTS.with_name("txmq-alerts-test.yaml")


def board_expressions() -> list[str]:
    """The expressions of the board, as Grafana would send them."""
    board = json.loads((DEPLOY / "grafana" / "txmq-board.json").read_text("utf-8"))
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", [])
    ]
    return [
        expression.replace("$job", "txmq").replace("$__rate_interval", "1m")
        for expression in expressions
    ]
