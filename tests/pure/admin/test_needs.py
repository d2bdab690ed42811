"""What ails a store is one list, by the thresholds of the alerts of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from txmq.ops.admin.needs import (
    DELAY_LAG_MAX_S,
    FILES_MAX,
    OPEN_AGE_MAX_S,
    PUBLISH_LAG_MAX_S,
    STILL_MAX_S,
    Alert,
    Figures,
    Urgency,
    needs_of,
)
from txmq.ops.admin.status import AGE_BOUNDS_S, Lag, ParkedTopicStatus, SetAsideStatus

ALERTS = (Path(__file__).parents[3] / "deploy" / "prometheus" / "txmq-alerts.yaml").read_text()
AT = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
WELL = Figures("/data/txmq", AT)


def parked(reason: str, topic: str = "orders") -> ParkedTopicStatus:
    return ParkedTopicStatus(topic, 3, reason, AT.replace(minute=0, hour=11), 7)


def expression(alert: Alert) -> str:
    found = re.search(rf"alert: {alert}\n +expr: (.*)", ALERTS)
    assert found is not None, alert
    return found[1]


# The figures of each need: one that is still well, and one that is not.
BOUNDS: dict[str, tuple[Alert, Urgency, Callable[[Any], Figures], Any, Any]] = {
    "claims": (
        Alert.NOTHING_IS_PUBLISHED, Urgency.NOW,
        lambda s: replace(WELL, published=Lag(1, 2, s)), PUBLISH_LAG_MAX_S, PUBLISH_LAG_MAX_S + 1,
    ),
    "delayed": (
        Alert.DELAYED_IS_LATE, Urgency.NOW,
        lambda s: replace(WELL, delay_lag_s=s), DELAY_LAG_MAX_S, DELAY_LAG_MAX_S + 1,
    ),
    "parked": (
        Alert.TOPIC_PARKED, Urgency.NOW,
        lambda topics: replace(WELL, parked=topics), (), (parked("disk full"),),
    ),
    "unreadable": (
        Alert.FILE_UNREADABLE, Urgency.NOW,
        lambda files: replace(WELL, unreadable=files), (), ("a.parquet is empty",),
    ),
    "set aside": (
        Alert.FILE_UNREADABLE, Urgency.NOW,
        lambda ids: replace(WELL, set_aside=ids), (),
        (SetAsideStatus("0", "a.parquet is empty", AT, is_given_up=False),),
    ),
    "incomplete": (
        Alert.INCOMPLETE, Urgency.NOW, lambda count: replace(WELL, incomplete=count), 0, 1,
    ),
    "open": (
        Alert.OPEN_TOO_LONG, Urgency.NOW,
        lambda s: replace(WELL, oldest_open_s=s, open_too_long=1),
        OPEN_AGE_MAX_S, OPEN_AGE_MAX_S + 1,
    ),
    "discarded": (
        Alert.DISCARDED, Urgency.SOON, lambda count: replace(WELL, discarded=count), 0, 1,
    ),
    "silent": (
        Alert.NOBODY_TO_ASK, Urgency.SOON, lambda count: replace(WELL, silent=count), 0, 1,
    ),
    "damaged group": (
        Alert.GROUP_UNREADABLE, Urgency.SOON,
        lambda groups: replace(WELL, damaged=groups), {}, {"billing": "is empty"},
    ),
    "unread": (
        Alert.NOBODY_CONSUMES, Urgency.SOON,
        lambda groups: replace(WELL, unread=groups), {}, {"billing": 1},
    ),
    "still": (
        Alert.GROUP_FALLS_BEHIND, Urgency.SOON,
        lambda s: replace(WELL, still_s={"billing": [0.0, s]}), STILL_MAX_S - 1, STILL_MAX_S,
    ),
    "files": (
        Alert.MANY_FILES, Urgency.SOON,
        lambda files: replace(WELL, files={"half": files, "op": 1}), FILES_MAX, FILES_MAX + 1,
    ),
}  # fmt: skip


def test_well_store_needs_nothing() -> None:
    assert needs_of(WELL) == []


@pytest.mark.parametrize("name", BOUNDS)
def test_need_begins_beyond_its_bound(name: str) -> None:
    alert, urgency, figures, well, ill = BOUNDS[name]

    assert needs_of(figures(well)) == []
    (need,) = needs_of(figures(ill))
    assert (need.alert, need.urgency) == (alert, urgency)
    assert all((need.where, need.problem, need.next_step, need.title, need.text))
    assert need.path.startswith("/")
    assert "/data/txmq" in need.call.words


def test_each_alert_of_the_list_has_a_case_and_is_one_of_prometheus() -> None:
    assert {case[0] for case in BOUNDS.values()} == set(Alert)
    assert set(Alert) <= set(re.findall(r"alert: (\w+)", ALERTS))


@pytest.mark.parametrize("alert", Alert)
def test_urgency_is_the_severity_of_the_alert(alert: Alert) -> None:
    (urgency,) = {case[1] for case in BOUNDS.values() if case[0] is alert}
    after = ALERTS.partition(f"alert: {alert}\n")[2]
    severity = after.partition("severity: ")[2].partition("}")[0]
    assert {"page": Urgency.NOW, "ticket": Urgency.SOON}[severity] is urgency


@pytest.mark.parametrize(
    ("alert", "bound"),
    [
        (Alert.NOTHING_IS_PUBLISHED, PUBLISH_LAG_MAX_S),
        (Alert.DELAYED_IS_LATE, DELAY_LAG_MAX_S),
        (Alert.OPEN_TOO_LONG, OPEN_AGE_MAX_S),
        (Alert.MANY_FILES, FILES_MAX),
    ],
)
def test_threshold_is_that_of_the_alert(alert: Alert, bound: float) -> None:
    assert expression(alert).endswith(f"> {bound:g}")


def test_age_that_is_too_long_is_counted_by_the_status() -> None:
    assert OPEN_AGE_MAX_S in AGE_BOUNDS_S


def test_what_cannot_wait_comes_first() -> None:
    figures = replace(WELL, discarded=1, files={"half": FILES_MAX + 1}, incomplete=1)
    assert [need.alert for need in needs_of(figures)] == [
        Alert.INCOMPLETE, Alert.DISCARDED, Alert.MANY_FILES,
    ]  # fmt: skip


def test_claims_wait_for_a_broker_or_for_a_slow_one() -> None:
    waiting = replace(WELL, published=Lag(1, 2, 75.0))
    (without,) = needs_of(waiting)
    (beside,) = needs_of(replace(waiting, has_broker=True))

    assert without.problem == "no broker is known to run, and a claim waits for 75 s"
    assert beside.problem == "one is known to run, and a claim waits for 75 s to be published"


def test_topic_that_is_behind_is_compared_and_another_one_is_examined() -> None:
    behind, full = needs_of(
        replace(WELL, parked=[parked("TopicBehindError: went back"), parked("disk full", "paid")])
    )

    assert behind.call.words == ("rebuild-topic", "/data/txmq", "orders")
    assert full.call.words == ("doctor", "/data/txmq")
    assert full.text == "It could not be written for 1 h, 7 attempts: disk full"
    assert (full.where, full.problem) == ("topics/paid", "is parked: disk full")


def test_groups_without_a_listener_are_named_as_far_as_they_are_known() -> None:
    needs = needs_of(replace(WELL, silent=7, silent_groups={"shop": 4, "billing": 1}))

    assert [need.title for need in needs] == [
        "1 transaction of billing without a listener",
        "4 transactions of shop without a listener",
        "2 transactions without a listener",
    ]
