# ruff: noqa: S301
from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from txmq.errors import (
    InvalidMessageError,
    MessageTooLargeError,
    TransactionNotFoundError,
)
from txmq.message.delay_levels import DelayLevel
from txmq.message.ids import (
    check_transaction_id,
    message_id,
    new_transaction_id,
    transaction_time_ms,
)
from txmq.message.message import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    MAX_FIELD_BYTES,
    RESERVED_PROPERTIES,
    LocalTransactionState,
    Message,
)
from txmq.testing import START_MS

# --- ids --------------------------------------------------------------------------------------


def test_new_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    made = uuid.UUID(new_transaction_id(START_MS))

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == START_MS


def test_new_ids_differ_in_the_same_millisecond() -> None:
    assert len({new_transaction_id(START_MS) for _ in range(10_000)}) == 10_000


def test_every_random_bit_of_an_id_is_used() -> None:
    drawn = [uuid.UUID(new_transaction_id(START_MS)).int for _ in range(300)]
    random_bits = ((1 << 80) - 1) ^ (0xF << 76) ^ (0b11 << 62)

    ever_one, ever_zero = 0, 0
    for value in drawn:
        ever_one |= value
        ever_zero |= ~value

    assert ever_one & ever_zero & ((1 << 80) - 1) == random_bits


def test_new_id_is_accepted_as_an_id() -> None:
    made = new_transaction_id(START_MS)

    assert check_transaction_id(made) == made


@pytest.mark.parametrize(
    "value",
    [
        None, "", 1, b"018f0000-0000-7000-8000-000000000001", "not-an-id",
        "960e5852-acd8-41be-a94c-d8a245f7ff40",
        "fdb44ab2-e5b8-11f1-935c-02fc00000001", "018F0000-0000-7000-8000-00000000000A",
        "018f0000-0000-7000-8000-000000000001\n", "018f0000-0000-7000-c000-000000000001",
        "018f0000000070008000000000000001", "x" * 10_000, "\ud800",
    ],
    ids=ascii,
)  # fmt: skip
def test_what_no_producer_makes_is_not_an_id(value: object) -> None:
    with pytest.raises(TransactionNotFoundError) as refused:
        check_transaction_id(value)

    assert len(str(refused.value)) < 200


def test_message_id_is_the_address_of_a_message() -> None:
    assert message_id("018f", 3) == "018f:3"


def test_time_in_front_of_an_id_is_read_back() -> None:
    assert transaction_time_ms(new_transaction_id(START_MS + 1)) == START_MS + 1


# --- fields -----------------------------------------------------------------------------------


def test_least_message_is_a_topic_and_an_empty_body() -> None:
    message = Message("orders", b"")

    assert (message.tags, message.joined_keys, message.sharding_key) == (None, None, None)
    assert message.properties == {}
    assert message.body_size_bytes == message.properties_size_bytes == 0


@pytest.mark.parametrize("body", [None, "text", bytearray(b"x"), memoryview(b"x"), 1, ["x"]])
def test_body_that_is_not_bytes_is_refused(body: object) -> None:
    with pytest.raises(InvalidMessageError, match="must be bytes") as refused:
        Message("orders", body)  # type: ignore[arg-type]

    assert refused.value.field == "body"


def test_body_is_not_shown() -> None:
    assert "secret" not in repr(Message("orders", b"secret"))


@pytest.mark.parametrize(
    ("keys", "joined"),
    [
        ("order-42", "order-42"), ("a b", "a b"), (["a", "b"], "a b"), (("a",), "a"),
        ([], None), (None, None), ((key for key in "ab"), "a b"), ("ключ", "ключ"),
    ],
)  # fmt: skip
def test_keys_are_joined_by_a_space(keys: object, joined: str | None) -> None:
    assert Message("orders", b"", keys=keys).joined_keys == joined  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "keys",
    [
        "", "  ", 1, b"key", ["a b"], [""], [None], [1], {"a": "b"}, [b"a"], bytearray(b"a"),
        "a\x00", ["a\n"], "\ud800", "k" * (MAX_FIELD_BYTES + 1),
        ["k" * MAX_FIELD_BYTES, "k"], object(),
    ],
    ids=lambda keys: ascii(keys)[:20],
)  # fmt: skip
def test_keys_that_cannot_be_read_back_are_refused(keys: object) -> None:
    with pytest.raises(InvalidMessageError):
        Message("orders", b"", keys=keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["tags", "sharding_key"])
@pytest.mark.parametrize(
    "value",
    ["", " ", 1, b"x", ["x"], "a\x01b", "a\x7f", "\udfff", "x" * (MAX_FIELD_BYTES + 1), True],
    ids=lambda value: ascii(value)[:20],
)
def test_text_field_that_cannot_be_read_back_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidMessageError, match=field):
        Message("orders", b"", **{field: value})  # type: ignore[arg-type]


def test_limit_of_a_field_counts_bytes() -> None:
    assert Message("orders", b"", tags="я" * (MAX_FIELD_BYTES // 2)).tags
    with pytest.raises(InvalidMessageError, match="bytes long"):
        Message("orders", b"", tags="я" * (MAX_FIELD_BYTES // 2 + 1))


def test_several_tags_in_one_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="one tag"):
        Message("orders", b"", tags="a || b")


# --- properties -------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [None, [], "a=b", [("a", "b")], 1])
def test_properties_that_are_no_mapping_are_refused(properties: object) -> None:
    with pytest.raises(InvalidMessageError, match="must be a mapping") as refused:
        Message("orders", b"", properties=properties)  # type: ignore[arg-type]

    assert refused.value.field == "properties"


@pytest.mark.parametrize(
    "pair",
    [
        ("a", None), ("", "b"), ("a", ""), (" ", "b"), ("a", "\t"), (1, "b"), (None, "b"),
        (b"a", "b"), ("a", {"b": "c"}), ("a", float("nan")), ("a", 1), ("a", True),
        ("a", "x\x01y"), ("a", "x\x02y"), ("a\x00", "b"), ("\ud800", "b"), ("a", "\ud800"),
        ("a", "v" * (MAX_FIELD_BYTES + 1)),
    ],
    ids=lambda pair: ascii(pair)[:20],
)  # fmt: skip
def test_property_that_cannot_be_read_back_is_refused(pair: tuple[object, object]) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        Message("orders", b"", properties=dict([pair]))  # type: ignore[list-item]

    assert refused.value.field == "property"


@pytest.mark.parametrize("name", [*sorted(RESERVED_PROPERTIES), "__txmq_x", "__TXMQ"])
def test_property_of_the_protocol_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessageError, match="reserved"):
        Message("orders", b"", properties={name: "x"})


def test_message_does_not_follow_properties_that_change_later() -> None:
    properties = {"a": "b"}
    message = Message("orders", b"", properties=properties)

    properties["a"] = "c"

    assert message.properties == {"a": "b"}


def test_properties_of_a_message_cannot_be_changed() -> None:
    message = Message("orders", b"", properties={"a": "b"})

    with pytest.raises(TypeError):
        message.properties["a"] = "c"  # type: ignore[index]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "abc", "1e3", "+5", " 5", "٣", "9" * 10])
def test_immunity_time_must_be_whole_seconds_above_zero(value: str) -> None:
    with pytest.raises(InvalidMessageError, match="property"):
        Message("orders", b"", properties={CHECK_IMMUNITY_TIME_IN_SECONDS: value})


@pytest.mark.parametrize(("given", "expected"), [(None, 6.0), ("5", 6.0), ("6", 6.0), ("7", 7.0)])
def test_immunity_time_is_never_below_the_timeout(given: str | None, expected: float) -> None:
    properties = {} if given is None else {CHECK_IMMUNITY_TIME_IN_SECONDS: given}

    assert Message("orders", b"", properties=properties).immunity_time_s(6.0) == expected


# --- sizes ------------------------------------------------------------------------------------


def check_sizes(message: Message, body: int = 100, properties: int = 100) -> None:
    message.check_sizes(max_message_size_bytes=body, max_properties_size_bytes=properties)


def test_body_may_be_as_large_as_its_limit_and_not_a_byte_larger() -> None:
    check_sizes(Message("orders", b"x" * 100))
    with pytest.raises(MessageTooLargeError) as refused:
        check_sizes(Message("orders", b"x" * 101))

    assert refused.value.field == "body bytes"
    assert (refused.value.size, refused.value.limit) == (101, 100)


def test_properties_tags_and_keys_share_one_limit_in_bytes() -> None:
    fields = {"tags": "t" * 20, "keys": "k" * 20, "sharding_key": "s" * 20}

    check_sizes(Message("orders", b"", **fields, properties={"ä" * 10: "v" * 20}))  # type: ignore[arg-type]
    with pytest.raises(MessageTooLargeError) as refused:
        check_sizes(Message("orders", b"", **fields, properties={"ä" * 10: "v" * 21}))  # type: ignore[arg-type]

    assert (refused.value.field, refused.value.size) == ("properties bytes", 101)


# --- delay ------------------------------------------------------------------------------------


SOON = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "delay",
    [
        {"delay_level": 1}, {"delay_level": 18}, {"delay_level": 19}, {"delay_level": 10**6},
        {"delay_level": DelayLevel.AFTER_2H}, {"delay_s": 1}, {"deliver_timestamp": SOON},
        {"delay_level": 0, "deliver_timestamp": SOON}, {"delay_level": 0, "delay_s": 5},
    ],
    ids=str,
)  # fmt: skip
def test_delayed_messages(delay: dict[str, object]) -> None:
    assert Message("orders", b"", **delay).is_delayed  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [{}, {"delay_level": 0}, {"delay_s": 0}], ids=str)
def test_level_0_is_no_delay(delay: dict[str, object]) -> None:
    assert not Message("orders", b"", **delay).is_delayed  # type: ignore[arg-type]


class Nowhere(tzinfo):
    """A time zone of somebody's own, which is broken."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        message = "no offset"
        raise RuntimeError(message)


@pytest.mark.parametrize(
    "delay",
    [
        {"deliver_timestamp": datetime(2026, 1, 1, tzinfo=Nowhere())},
        {"delay_level": -1}, {"delay_level": True}, {"delay_level": "5s"}, {"delay_level": 1.0},
        {"delay_level": float("nan")}, {"delay_level": 10**18}, {"delay_s": -1},
        {"delay_s": 0.5}, {"delay_s": float("inf")}, {"delay_s": "5s"}, {"delay_s": 10**18},
        {"deliver_timestamp": 10**18}, {"deliver_timestamp": "2026-01-01"},
        {"deliver_timestamp": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"deliver_timestamp": datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))},
        {"delay_level": 1, "deliver_timestamp": SOON}, {"delay_level": 1, "delay_s": 1},
        {"delay_s": 1, "deliver_timestamp": SOON},
    ],
    ids=" ".join,
)  # fmt: skip
def test_delays_that_cannot_be_kept_are_refused(delay: dict[str, object]) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        Message("orders", b"", **delay)  # type: ignore[arg-type]

    assert refused.value.field == ("delay" if len(delay) > 1 else next(iter(delay)))


# --- as a value -------------------------------------------------------------------------------

FULL = Message(
    "orders", b"42", tags="paid", keys=["a", "b"], properties={"x": "y"}, sharding_key="s"
)


def test_message_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.topic = "other"  # type: ignore[misc]


@pytest.mark.parametrize("message", [FULL, Message("orders", b"")], ids=["full", "least"])
@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, replace])
def test_message_can_be_sent_to_another_process(
    again: Callable[[Message], Message], message: Message
) -> None:
    received = again(message)

    assert received == message
    assert hash(received) == hash(message)


def test_three_answers_and_no_more() -> None:
    assert [state.name for state in LocalTransactionState] == ["COMMIT", "ROLLBACK", "UNKNOWN"]
