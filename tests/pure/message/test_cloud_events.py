from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import (
    InvalidMessageError,
    InvalidNameError,
)
from txmq.message.cloud_events import attributes_of, cloud_event
from txmq.message.message import Message

NEEDED: dict[str, Any] = {"id": "7", "source": "/shop", "type": "com.example.order.paid"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(**more: Any) -> Message:
    return cloud_event("orders", **{**NEEDED, **more})


def test_attributes_are_properties_and_the_data_is_the_body() -> None:
    made = event(
        data=b"42",
        subject="order-7",
        time=NOON,
        datacontenttype="application/json; charset=utf-8",
        dataschema="https://example.com/order.json",
        extensions={"shopid": "12"},
        keys="order-7",
        properties={"own": "1"},
        delay_s=5,
    )

    assert (made.topic, made.body, made.keys, made.delay_s) == ("orders", b"42", "order-7", 5)
    assert dict(made.properties) == {
        "own": "1",
        "CE_specversion": "1.0",
        "CE_id": "7",
        "CE_source": "/shop",
        "CE_type": "com.example.order.paid",
        "CE_subject": "order-7",
        "CE_time": "2026-01-31T12:00:00Z",
        "CE_contenttype": "application/json; charset=utf-8",
        "CE_dataschema": "https://example.com/order.json",
        "CE_shopid": "12",
    }


def test_attributes_come_back_by_their_own_names() -> None:
    made = event(time="2026-01-31t12:00:00.5+01:00", datacontenttype="text/plain")

    assert attributes_of(made) == {
        **NEEDED,
        "specversion": "1.0",
        "time": "2026-01-31t12:00:00.5+01:00",
        "datacontenttype": "text/plain",
    }


class SparkRow(tuple[Any, ...]):
    """As much of Spark's Row as counts here: a tuple that takes names."""

    __slots__ = ()

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"properties": self[0]}

    def __getitem__(self, name: Any) -> Any:
        return super().__getitem__(0 if name == "properties" else name)


PAIRS = [("CE_specversion", "1.0"), ("CE_id", "7"), ("own", "1")]


@pytest.mark.parametrize(
    "row",
    [
        {"properties": PAIRS},
        {"properties": dict(PAIRS)},
        SparkRow([dict(PAIRS)]),
        SimpleNamespace(properties=dict(PAIRS)),
    ],
    ids=["pairs", "mapping", "spark", "object"],
)
def test_rows_of_every_engine_are_read(row: Any) -> None:
    assert attributes_of(row) == {"specversion": "1.0", "id": "7"}


@pytest.mark.parametrize(
    "message",
    [Message("orders", b""), {"properties": None}, {"properties": {"CE_id": "7"}}],
    ids=["none", "null", "without version"],
)
def test_message_that_is_no_event_has_no_attributes(message: Any) -> None:
    assert attributes_of(message) == {}


EXTENSIONS = [
    ("text", "text"),
    (True, "true"),
    (False, "false"),
    (-(2**31), "-2147483648"),
    (b"\x00\xff", "AP8="),
    (NOON, "2026-01-31T12:00:00Z"),
    (NOON.astimezone(timezone(timedelta(hours=2))), "2026-01-31T12:00:00Z"),
]


@pytest.mark.parametrize(("value", "text"), EXTENSIONS)
def test_extensions_have_the_text_of_the_specification(value: object, text: str) -> None:
    assert attributes_of(event(extensions={"x1": value}))["x1"] == text


REFUSED = [
    ({"id": ""}, "CloudEvents id must not be blank"),
    ({"id": None}, "CloudEvents id must be a str, not NoneType"),
    ({"id": 7}, "CloudEvents id must be a str, not int"),
    ({"type": "a\u0085b"}, "CloudEvents type must not hold control"),
    ({"type": "a\U0001fffe"}, "CloudEvents type must not hold control"),
    ({"type": "\ud800"}, "surrogate"),
    ({"source": "my shop"}, "CloudEvents source must be a URI reference"),
    ({"source": "/100%"}, "CloudEvents source must be a URI reference"),
    ({"subject": " "}, "CloudEvents subject must not be blank"),
    ({"dataschema": "/order.json"}, "must be an absolute URI"),
    ({"datacontenttype": "json"}, "must be a media type"),
    ({"time": "yesterday"}, "must be a time as in RFC 3339"),
    ({"time": datetime(2026, 1, 31)}, "has no time zone"),  # noqa: DTZ001
    ({"time": 7}, "CloudEvents time must be a str, not int"),
    ({"extensions": {"shop_id": "1"}}, "must be small letters and digits"),
    ({"extensions": {"Shop": "1"}}, "must be small letters and digits"),
    ({"extensions": {"": "1"}}, "must be small letters and digits"),
    ({"extensions": {"time": "1"}}, "is a name of CloudEvents itself"),
    ({"extensions": {"data": "1"}}, "is a name of CloudEvents itself"),
    ({"extensions": {"contenttype": "a/b"}}, "is a name of CloudEvents itself"),
    ({"extensions": {"x": 2**31}}, "more than 32 bits"),
    ({"extensions": {"x": None}}, "CloudEvents x must be a str"),
    ({"extensions": ["x"]}, "extensions must be a mapping"),
    ({"properties": {"CE_x": "1"}}, "pass it in extensions"),
    ({"properties": ["x"]}, "properties must be a mapping"),
    ({"data": "text"}, "body must be bytes"),
]


@pytest.mark.parametrize(("given_values", "text"), REFUSED)
def test_what_the_specification_refuses_is_refused(given_values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidMessageError, match=text):
        event(**given_values)


def test_a_topic_is_checked_as_for_every_message() -> None:
    with pytest.raises(InvalidNameError):
        cloud_event("a/b", **NEEDED)


ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.binary(max_size=4)


@given(ANYTHING, ANYTHING, st.dictionaries(ANYTHING, ANYTHING, max_size=2))
def test_anything_is_an_event_that_comes_back_or_an_error_of_ours(
    source: Any, subject: Any, extensions: dict[Any, Any]
) -> None:
    try:
        made = event(source=source, subject=subject, extensions=extensions)
    except InvalidMessageError:
        return

    found = attributes_of(made)
    assert (found["source"], found.get("subject")) == (source, subject)
    assert set(extensions) <= set(found)
