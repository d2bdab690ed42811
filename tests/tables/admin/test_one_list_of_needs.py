"""Doctor, status and dashboard tell the same needs of the same store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.dashboard_world import DashboardWorld
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.needs import Alert, Figures, needs_of
from txmq.ops.admin.status import Admin
from txmq.ops.cli.app import app

# What a status does not count; the doctor finds groups that cannot be read by itself.
OF_CONSUMERS = {Alert.NOBODY_CONSUMES, Alert.GROUP_FALLS_BEHIND, Alert.GROUP_UNREADABLE}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path, queues=2)
    made.troubled_day(4)
    yield made
    made.close()


def test_all_three_tell_the_needs_of_a_troubled_store(world: DashboardWorld) -> None:
    needs = needs_of(Figures.of(Admin(world.store, clock=world.clock).status()))
    alerts = {need.alert for need in needs}
    assert {Alert.TOPIC_PARKED, Alert.OPEN_TOO_LONG, Alert.DISCARDED} <= alerts

    page = set(re.findall(r"Runbook: (\w+)", world.page("/").words))
    assert page - OF_CONSUMERS == alerts

    findings = {
        (one.where, one.problem)
        for one in Doctor(world.store, clock=world.clock).examine().findings
    }
    assert {(need.where, need.problem) for need in needs} <= findings


def test_status_names_what_needs_an_operator(world: DashboardWorld) -> None:
    words = " ".join(CliRunner().invoke(app, ["status", world.store.location]).stdout.split())

    assert "1 transaction discarded; next: txmq discarded list LOCATION" in words
    assert words.count("is parked") == 1
