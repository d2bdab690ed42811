"""What a topic is, and which messages fit it: RocketMQ 5's kinds."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kit.bodies import ORDER
from txmq.errors import ConfigError, StoreFormatError
from txmq.store.topic_settings import TopicKind, TopicSettings, kind_problem

NORMAL, FIFO = TopicKind.NORMAL, TopicKind.FIFO
DELAY, TRANSACTION = TopicKind.DELAY, TopicKind.TRANSACTION

# transactional, delayed, with a sharding key: of several the first counts, as in RocketMQ 5.
SENT = {
    (False, False, False): NORMAL,
    (False, False, True): FIFO,
    (False, True, False): DELAY,
    (False, True, True): DELAY,
    (True, False, False): TRANSACTION,
    (True, False, True): TRANSACTION,
    (True, True, False): TRANSACTION,
    (True, True, True): TRANSACTION,
}


def problem(kind: TopicKind, sent: tuple[bool, bool, bool]) -> str | None:
    is_transactional, is_delayed, has_sharding_key = sent
    return kind_problem(
        kind,
        is_transactional=is_transactional,
        is_delayed=is_delayed,
        has_sharding_key=has_sharding_key,
    )


@pytest.mark.parametrize("kind", [NORMAL, FIFO, DELAY, TRANSACTION])
@pytest.mark.parametrize("sent", list(SENT))
def test_topic_takes_messages_of_its_own_kind_only(
    kind: TopicKind, sent: tuple[bool, bool, bool]
) -> None:
    assert (problem(kind, sent) is None) is (SENT[sent] is kind)


@pytest.mark.parametrize("sent", list(SENT))
def test_unspecified_takes_all(sent: tuple[bool, bool, bool]) -> None:
    assert problem(TopicKind.UNSPECIFIED, sent) is None


def test_problem_says_which_kind_fits() -> None:
    said = problem(FIFO, (True, False, True))

    assert said is not None
    assert "its kind is FIFO" in said
    assert "of kind TRANSACTION or UNSPECIFIED" in said


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "MIXED"}, "kind must be one of"),
        ({"kind": None}, "kind must be one of"),
        ({"queue_nums": 0}, "queue_nums must be from 1 to 4,096"),
        ({"queue_nums": 4097}, "queue_nums"),
        ({"queue_nums": True}, "queue_nums"),
        ({"queue_nums": 2.0}, "queue_nums"),
        ({"reserved_time_h": 0}, "reserved_time_h must be above 0"),
        ({"reserved_time_h": -1.0}, "reserved_time_h"),
        ({"reserved_time_h": float("nan")}, "reserved_time_h"),
        ({"reserved_time_h": float("inf")}, "reserved_time_h"),
        ({"reserved_time_h": "72"}, "reserved_time_h"),
        ({"reserved_time_h": True}, "reserved_time_h"),
        ({"body": []}, "body must be a mapping"),
        ({"body": {"a": b"bytes"}}, "body: it cannot be kept as JSON"),
        ({"body": {"a": float("nan")}}, "body: it cannot be kept as JSON"),
        ({"body": {"encoding": "xml"}}, "body: encoding must be one of json, avro"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        TopicSettings(**{"kind": NORMAL, "queue_nums": 8, **changes})


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        TopicSettings("x", 0, -1.0)  # type: ignore[arg-type]

    assert len(refused.value.faults) == 3


def test_settings_come_back_as_they_were_kept() -> None:
    settings = TopicSettings(DELAY, 3, 0.5, {"encoding": "json", "schema": ORDER})

    assert TopicSettings.from_value("orders", settings.to_value()) == settings


def test_settings_do_not_change_with_what_they_were_made_of() -> None:
    body = {"encoding": "json", "schema": copy.deepcopy(ORDER)}
    settings = TopicSettings(NORMAL, 1, None, body)
    body["schema"]["fields"].clear()

    assert settings.body == {"encoding": "json", "schema": ORDER}


@pytest.mark.parametrize(
    "value", [{}, {"kind": "NEW", "queue_nums": 1}, {"kind": "NORMAL", "queue_nums": 0}]
)
def test_kept_settings_that_cannot_be_read_name_the_topic(value: dict[str, Any]) -> None:
    with pytest.raises(StoreFormatError, match="orders"):
        TopicSettings.from_value("orders", value)
