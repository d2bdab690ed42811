"""Names inside a namespace; RocketMQ's NamespaceUtilTest, restated with stored names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError, InvalidNameError
from txmq.message.message import Message
from txmq.message.names import (
    MAX_GROUP_CHARACTERS,
    MAX_TOPIC_CHARACTERS,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    check_group,
    check_namespace,
    check_readable_topic,
    check_stored_group,
    check_topic,
    group_in_namespace,
    namespace_of,
    shown_name,
    stored_group,
    stored_name,
    stored_topic,
    topic_in_namespace,
    unwrapped,
    wrapped,
)
from txmq.producer.producer import TransactionProducer
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store

TENANT, OTHER = "MQ_INST_XXX", "MQ_INST_XXX1"
TOPIC, GROUP = "TOPIC_XXX", "GID_XXX"
STORED = {
    TOPIC: f"{TENANT}.{TOPIC}",
    GROUP: f"{TENANT}.{GROUP}",
    f"RETRY_{GROUP}": f"RETRY_{TENANT}.{GROUP}",
    f"DLQ_{GROUP}": f"DLQ_{TENANT}.{GROUP}",
}
SYSTEM_TOPICS = [
    TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC, TRACE_TOPIC, "rmq_sys_topic", "SELF_TEST_TOPIC",
]  # fmt: skip
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
LONG = "n" * 60


# --- NamespaceUtilTest ------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_a_name_loses_its_namespace_whichever_it_is(name: str) -> None:
    assert unwrapped(STORED[name]) == name


@pytest.mark.parametrize("name", STORED)
def test_a_name_loses_the_namespace_that_is_named(name: str) -> None:
    assert unwrapped(STORED[name], TENANT) == name


@pytest.mark.parametrize("name", STORED)
def test_a_name_keeps_the_namespace_that_is_not_named(name: str) -> None:
    assert unwrapped(STORED[name], OTHER) == STORED[name]


@pytest.mark.parametrize("name", STORED)
def test_a_name_gets_its_namespace_behind_the_prefix_of_retry_and_dead_letters(name: str) -> None:
    assert wrapped(name, TENANT) == STORED[name]


@pytest.mark.parametrize("name", STORED)
def test_a_name_gets_its_namespace_once(name: str) -> None:
    assert wrapped(STORED[name], TENANT) == STORED[name]


@pytest.mark.parametrize("name", SYSTEM_TOPICS)
def test_system_topics_belong_to_no_namespace(name: str) -> None:
    assert wrapped(name, TENANT) == name
    assert namespace_of(name) is None


@pytest.mark.parametrize("name", STORED)
def test_the_namespace_can_be_read_from_a_name(name: str) -> None:
    assert namespace_of(name) is None
    assert namespace_of(STORED[name]) == TENANT


# --- what RocketMQ does not test ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("orders", "orders"),
        ("tenant.orders", "tenant%orders"),
        ("RETRY_billing", "%RETRY%billing"),
        ("DLQ_tenant.billing", "%DLQ%tenant%billing"),
        (SCHEDULE_TOPIC, SCHEDULE_TOPIC),
    ],
)
def test_a_name_is_shown_as_rocketmq_writes_it(stored: str, shown: str) -> None:
    assert shown_name(stored) == shown
    assert stored_name(shown) == stored
    assert stored_name(stored) == stored


def test_without_a_namespace_nothing_changes() -> None:
    assert wrapped("orders", None) == "orders"
    assert unwrapped("orders") == "orders"


def test_a_name_of_another_namespace_cannot_be_reached() -> None:
    with pytest.raises(InvalidNameError):
        check_readable_topic(wrapped("other.orders", "tenant"))


@pytest.mark.parametrize("name", [None, 5, b"orders", "a b", ""])
def test_what_is_no_name_has_no_stored_name(name: object) -> None:
    for stored in (stored_topic, stored_group):
        with pytest.raises(InvalidNameError):
            stored(name)
    for in_namespace in (topic_in_namespace, group_in_namespace):
        with pytest.raises(InvalidNameError):
            in_namespace(name, TENANT)


@pytest.mark.parametrize("name", [TOPIC, f"RETRY_{GROUP}", f"DLQ_{GROUP}"])
def test_a_topic_in_a_namespace_has_a_checked_stored_name(name: str) -> None:
    assert topic_in_namespace(name, TENANT) == STORED[name]
    assert topic_in_namespace(STORED[name], TENANT) == STORED[name]
    assert topic_in_namespace(name, None) == name
    assert stored_topic(shown_name(STORED[name])) == STORED[name]


def test_a_group_in_a_namespace_has_a_checked_stored_name() -> None:
    assert group_in_namespace(GROUP, TENANT) == STORED[GROUP]
    with pytest.raises(InvalidNameError, match=r"^consumer_group .*reserved"):
        group_in_namespace("RETRY_g", TENANT, "consumer_group")


@given(NAMES, NAMES)
def test_wrapping_and_unwrapping_are_inverse(namespace: str, name: str) -> None:
    try:
        check_topic(name)
        check_namespace(namespace)
    except InvalidNameError:
        return

    stored = wrapped(name, namespace)

    assert unwrapped(stored, namespace) == name
    assert namespace_of(stored) == namespace
    assert stored_name(shown_name(stored)) == stored
    assert check_readable_topic(stored) == stored


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_names_meet(one: str, name: str, other: str, other_name: str) -> None:
    meet = f"{one}.{name}" == f"{other}.{other_name}"

    assert meet == ((one, name) == (other, other_name))


@pytest.mark.parametrize("name", ["orders.x", "tenant.orders", "tenant%orders", ".orders", "a..b"])
def test_users_write_no_dot_and_no_percent_sign(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_topic(name)
    with pytest.raises(InvalidNameError):
        check_group(name)


@pytest.mark.parametrize("name", ["a.b.c", ".b", "a.", "a..b", "a./b", "../b", "a.b\n"])
def test_a_stored_name_has_one_dot_between_two_names(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_readable_topic(name)
    with pytest.raises(InvalidNameError):
        check_stored_group(name)


@pytest.mark.parametrize(
    "name", ["", "a.b", "a%b", "a b", "RETRY_a", "txmq_a", "con", 1, "n" * 121]
)
def test_bad_namespace_is_refused(store: Store, name: object) -> None:
    with pytest.raises(InvalidNameError, match=r"^namespace"):
        TransactionProducer(store, producer_group="orders", namespace=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match=r"^namespace"):
        Consumer(store, consumer_group="orders", namespace=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tenant.RETRY_g", "retry_x.g", "tenant.nul", "txmq_x.g"])
def test_neither_part_of_a_group_may_be_reserved(name: str) -> None:
    with pytest.raises(InvalidNameError, match="reserved"):
        check_stored_group(name)


def test_the_length_of_a_group_counts_with_its_namespace(store: Store) -> None:
    fits = "g" * (MAX_GROUP_CHARACTERS - len(LONG) - 1)
    TransactionProducer(store, producer_group=fits, namespace=LONG).close()

    with pytest.raises(InvalidNameError, match="at most 120"):
        TransactionProducer(store, producer_group=f"{fits}g", namespace=LONG)
    with pytest.raises(InvalidNameError, match=r"^consumer_group"):
        Consumer(store, consumer_group=f"{fits}g", namespace=LONG)


def test_the_length_of_a_topic_counts_with_its_namespace(store: Store) -> None:
    fits = "t" * (MAX_TOPIC_CHARACTERS - len(LONG) - 1)
    with TransactionProducer(store, producer_group="g", namespace=LONG) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(fits, b""))

        with pytest.raises(InvalidNameError, match="at most 127"):
            transaction.send(Message(f"{fits}t", b""))


# --- settings -----------------------------------------------------------------------------------


def test_settings_name_a_group_as_it_is_shown() -> None:
    config = Config(groups={"tenant%orders": {"transaction_check_max": 3}})

    assert config.of_group("tenant.orders").transaction_check_max == 3
    assert config.of_group("orders").transaction_check_max == 15
    assert Config.from_dict(config.to_dict()) == config


def test_settings_refuse_a_group_that_is_named_twice() -> None:
    groups = {"tenant%orders": {}, "tenant.orders": {}}

    with pytest.raises(ConfigError, match=r"tenant.orders' is named twice"):
        Config(groups=groups)


@pytest.mark.parametrize("name", ["a%b%c", "%RETRY%orders", "a%", "con%orders"])
def test_settings_refuse_what_is_no_group(name: str) -> None:
    with pytest.raises(ConfigError, match="producer_group"):
        Config(groups={name: {}})
