"""Bodies in JSON, of plain values and of models, and errors that show no value of a body."""

from __future__ import annotations

import builtins
import dataclasses
import enum
from collections import deque
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, PlainSerializer

from txmq.errors import ConfigError, EnvironmentProblemError, InvalidBodyError
from txmq.message import json_body as json_bodies
from txmq.message.json_body import json_body, parsed_json
from txmq.message.message import Message

ID = "0191-aa:0"
CARD = "4111-1111"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)  # fmt: skip


class Order(BaseModel):
    order: int
    card: str
    day: date


@dataclasses.dataclass
class Line:
    product: str
    count: int


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass(frozen=True)
class Anything:
    value: Any


class Color(enum.Enum):
    RED = "red"


DAY = date(2026, 11, 24)
ORDER = Order(order=42, card=CARD, day=DAY)


@given(PLAIN)
def test_plain_value_comes_back_as_it_was(value: Any) -> None:
    assert parsed_json(json_body(value), ID) == value


@given(PLAIN)
def test_same_value_has_the_same_bytes(value: Any) -> None:
    assert json_body(value) == json_body(parsed_json(json_body(value), ID))


def test_body_is_utf_8_without_spaces_in_the_order_of_the_keys() -> None:
    assert json_body({"b": "ü", "a": [1, None]}) == '{"b":"ü","a":[1,null]}'.encode()


@pytest.mark.parametrize(
    ("value", "model"),
    [
        (ORDER, Order),
        (Line("tea", 2), Line),
        (Pair(1, 2), Pair),
        ([ORDER], list[Order]),
        (date(2026, 11, 24), date),
        ({"day": date(2026, 11, 24)}, dict[str, date]),
    ],
)
def test_model_comes_back_as_it_was(value: Any, model: Any) -> None:
    assert parsed_json(json_body(value), ID, model) == value


def test_message_takes_its_other_fields_too() -> None:
    message = Message.json("order-paid", ORDER, keys="order-42", tags="card")

    assert (message.keys, message.tags) == ("order-42", "card")
    assert parsed_json(message.body, ID, Order) == ORDER


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        "\ud800",
        {"a": object()},
        object(),
        {1, 2},
        b"bytes",
        (number for number in range(3)),
        type("Strange", (), {}),
    ],
)
def test_value_without_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidBodyError, match="message refused: body"):
        json_body(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": {1, 2}},
        [[{"b"}]],
        {"a": b"bytes"},
        [ORDER, {1}],
        {DAY: {"a", "b"}},
        {"a": {DAY: b"bytes"}},
        {b"key": 1},
        {frozenset("ab"): 1},
    ],
)
def test_part_whose_bytes_would_differ_is_refused_however_deep_it_is(value: Any) -> None:
    with pytest.raises(InvalidBodyError, match="pass a list"):
        json_body(value)


@pytest.mark.parametrize(
    "value",
    [
        Anything({"a", "b"}),
        {DAY: [Anything([frozenset("ab")])]},
        Anything(Anything({"a": {"b"}})),
        Anything(deque([{"a"}])),
        {Anything(frozenset("ab")): 1},
    ],
)
def test_set_in_a_model_is_refused(value: Any) -> None:
    with pytest.raises(InvalidBodyError, match="differs from process to process"):
        json_body(value)


def test_set_in_a_model_that_its_serializer_sorts_is_taken() -> None:
    class Sorted(BaseModel):
        tags: Annotated[set[str], PlainSerializer(sorted)]

    assert json_body(Sorted(tags={"b", "a"})) == b'{"tags":["a","b"]}'


@pytest.mark.parametrize("value", [Anything(float("nan")), {DAY: Anything({"a": -float("inf")})}])
def test_number_without_json_is_refused_also_in_a_model(value: Any) -> None:
    with pytest.raises(InvalidBodyError, match="finite"):
        json_body(value)


@pytest.mark.parametrize("key", [float("nan"), float("inf")])
def test_number_without_json_is_no_key(key: float) -> None:
    with pytest.raises(InvalidBodyError):
        json_body({DAY: {key: 1}})


@pytest.mark.parametrize("wrap", [lambda value: value, Anything, lambda value: {DAY: [value]}])
@pytest.mark.parametrize("keys", [(1, "1"), (DAY, "2026-11-24"), (1.0, "1.0"), (True, "true")])
def test_keys_with_the_same_text_are_refused(wrap: Any, keys: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidBodyError, match="two keys"):
        json_body(wrap(dict.fromkeys(keys)))


def test_keys_that_are_no_texts_become_texts() -> None:
    value = {DAY: {1: {True: [None]}, None: (2.5,)}, (1, 2): 3, Color.RED: ORDER}
    order = f'{{"order":42,"card":"{CARD}","day":"2026-11-24"}}'
    written = f'{{"2026-11-24":{{"1":{{"true":[null]}},"null":[2.5]}},"1,2":3,"red":{order}}}'

    assert json_body(value) == written.encode()


def test_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(InvalidBodyError):
        json_body(value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", CARD.encode() + b"{", b"[" * 200_000], ids=len
)
def test_body_that_is_no_json_is_a_typed_error_without_its_content(body: bytes) -> None:
    for model in (None, Order):
        with pytest.raises(InvalidBodyError, match=ID) as caught:
            parsed_json(body, ID, model)
        assert CARD not in str(caught.value)
        assert caught.value.__cause__ is None


def test_body_that_does_not_fit_tells_where_and_shows_no_value() -> None:
    body = json_body({"order": CARD, "day": CARD})

    with pytest.raises(InvalidBodyError, match=r"no Order: order \(int_parsing\)") as caught:
        parsed_json(body, ID, Order)

    assert "card (missing)" in str(caught.value)
    assert CARD not in str(caught.value)


@pytest.mark.parametrize("model", [5, {}, "Order"])
def test_what_is_no_model_is_refused_by_name(model: Any) -> None:
    with pytest.raises(ConfigError, match="no model of a body"):
        parsed_json(b"{}", ID, model)


def test_without_pydantic_plain_values_work_and_models_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pydantic":
            raise ModuleNotFoundError(name)
        return load(name, *arguments, **more)

    json_bodies._adapter.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)

    assert parsed_json(json_body({"a": 1}), ID) == {"a": 1}
    for call in (lambda: json_body(Line("tea", 2)), lambda: parsed_json(b"{}", ID, Line)):
        with pytest.raises(EnvironmentProblemError, match=r"extra pydantic"):
            call()


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.int64(3), 3), (np.uint8(3), 3), (np.bool_(1), True), (np.float32(1.5), 1.5),
        (np.str_("a"), "a"),
        (pd.Timestamp("2026-01-02T03:04:05Z"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (pd.Timedelta("1s"), timedelta(seconds=1)),
    ],
)  # fmt: skip
def test_a_scalar_of_numpy_or_pandas_is_the_value_it_stands_for(scalar: Any, plain: Any) -> None:
    assert json_body({"n": [scalar], scalar: 1}) == json_body({"n": [plain], plain: 1})


@pytest.mark.parametrize("missing", [pd.NaT, pd.NA, float("nan"), np.float32("nan")])
def test_a_missing_value_is_refused_by_name(missing: Any) -> None:
    with pytest.raises(InvalidBodyError, match=r"missing value .*; pass None"):
        json_body({"n": missing})


@pytest.mark.parametrize("time", [np.datetime64("2026-01-01", "ns"), np.timedelta64(1, "s")])
def test_a_time_of_numpy_is_refused_for_its_unit(time: Any) -> None:
    with pytest.raises(InvalidBodyError, match="whose unit JSON cannot say"):
        json_body({"n": time})
