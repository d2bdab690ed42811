from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import InvalidNameError
from txmq.message.names import (
    MAX_GROUP_CHARACTERS,
    MAX_TOPIC_CHARACTERS,
    TRANS_CHECK_MAX_TIME_TOPIC,
    check_group,
    check_readable_topic,
    check_topic,
)

Check = Callable[[object], str]


@pytest.mark.parametrize("name", ["a", "0", "order-paid", "Order_Paid", "x" * MAX_TOPIC_CHARACTERS])
def test_well_formed_topic_is_returned_as_it_is(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("check", [check_topic, check_group, check_readable_topic])
def test_trailing_newline_is_refused(check: Check) -> None:
    with pytest.raises(InvalidNameError):
        check("orders\n")


def test_topic_longer_than_its_limit_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="at most 127"):
        check_topic("x" * (MAX_TOPIC_CHARACTERS + 1))


@pytest.mark.parametrize("prefix", ["RETRY_", "DLQ_"])
def test_longest_group_still_fits_with_the_prefix_of_its_own_tables(prefix: str) -> None:
    group = check_group("g" * MAX_GROUP_CHARACTERS)

    assert check_readable_topic(prefix + group) == prefix + group


def test_group_longer_than_its_limit_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="producer_group"):
        check_group("g" * (MAX_GROUP_CHARACTERS + 1))


def test_consumer_group_is_named_in_its_error() -> None:
    with pytest.raises(InvalidNameError, match=r"^consumer_group"):
        check_group("a b", kind="consumer_group")


@pytest.mark.parametrize(
    "name",
    [
        "RETRY_g", "retry_g", "DLQ_g", "dLq_g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE",
        TRANS_CHECK_MAX_TIME_TOPIC, "txmq_half", "TXMQ_x", "CON", "nul", "Aux", "COM1", "lpt9",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    ],
)  # fmt: skip
@pytest.mark.parametrize("check", [check_topic, check_group])
def test_reserved_name_is_refused_in_any_case(check: Check, name: str) -> None:
    with pytest.raises(InvalidNameError, match="reserved"):
        check(name)


@pytest.mark.parametrize("name", ["RETRYING", "dlq", "console", "com10", "txmq"])
def test_name_that_only_looks_reserved_is_allowed(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("name", [TRANS_CHECK_MAX_TIME_TOPIC, "RETRY_g", "DLQ_g"])
def test_system_topics_may_be_read(name: str) -> None:
    assert check_readable_topic(name) == name


@pytest.mark.parametrize("name", [None, 1, 1.5, b"t", ["t"], object()])
def test_name_of_another_type_says_which_type_it_must_have(name: object) -> None:
    with pytest.raises(InvalidNameError) as refused:
        check_topic(name)

    assert refused.value.rule == f"pass a str, not {type(name).__name__}"
    assert isinstance(refused.value, ValueError)


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{1,200}", fullmatch=True))
def test_a_name_is_either_plain_ascii_or_refused(name: str) -> None:
    try:
        accepted = check_topic(name)
    except InvalidNameError:
        return

    assert accepted == name
    assert name.isascii()
    assert name.replace("-", "").replace("_", "").isalnum()
    assert 1 <= len(name) <= MAX_TOPIC_CHARACTERS
    assert name[0].isalnum()
