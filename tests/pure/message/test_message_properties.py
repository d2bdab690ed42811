# ruff: noqa: S301, PT017
"""Messages and ids, for anything that a caller may pass."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import halves, transaction_id
from txmq.errors import TxmqError
from txmq.message.ids import check_transaction_id, new_transaction_id, transaction_time_ms
from txmq.message.message import Message
from txmq.store.half import store_date

LAST_MS_OF_YEAR_9999 = 253_402_300_799_999
TEXT = st.text(max_size=12)
ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=8)
    | st.lists(TEXT, max_size=3) | st.dictionaries(TEXT, TEXT | st.integers(), max_size=3)
)  # fmt: skip


@given(st.integers(0, LAST_MS_OF_YEAR_9999))
def test_id_keeps_its_time(now_ms: int) -> None:
    made = new_transaction_id(now_ms)

    assert check_transaction_id(made) == made
    assert transaction_time_ms(made) == now_ms
    assert store_date(made).year <= 9999


@given(st.lists(st.integers(0, LAST_MS_OF_YEAR_9999), min_size=2, max_size=20, unique=True))
def test_ids_sort_by_time_as_text(moments: list[int]) -> None:
    made = [new_transaction_id(moment) for moment in sorted(moments)]

    assert sorted(made) == made


@given(ANYTHING)
def test_anything_is_an_id_or_not_found(value: object) -> None:
    try:
        assert check_transaction_id(value) == value
    except TxmqError as error:
        assert str(error).isprintable()


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_anything_is_a_message_or_an_error_of_ours(  # noqa: PLR0913, PLR0917
    topic: object, body: object, tags: object, keys: object, properties: object, key: object
) -> None:
    try:
        made = Message(topic, body, tags, keys, properties, key)  # type: ignore[arg-type]
    except TxmqError as error:
        assert str(error).isprintable()
    else:
        assert pickle.loads(pickle.dumps(made)) == made


SAFE = st.characters(exclude_categories=["Cs", "Cc"])
WORD = st.text(SAFE, min_size=1, max_size=8).filter(lambda text: text.strip())
MESSAGES = st.builds(
    Message,
    st.just("orders"),
    st.binary(max_size=20),
    tags=st.none() | WORD.filter(lambda text: "|" not in text),
    keys=st.none() | WORD | st.lists(WORD.filter(lambda text: " " not in text), max_size=3),
    properties=st.dictionaries(WORD.map("p{}".format), WORD, max_size=3),
    sharding_key=st.none() | WORD,
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_accepted_message_is_stored_as_it_is(sent: list[Message]) -> None:
    rows = halves(1, sent).to_pylist()

    for number, (row, message) in enumerate(zip(rows, sent, strict=True)):
        assert row["message_id"] == f"{transaction_id(1)}:{number}"
        assert row["body"] == message.body
        assert row["tags"] == message.tags
        assert row["keys"] == message.joined_keys
        assert dict(row["properties"]) == message.properties
        assert row["sharding_key"] == message.sharding_key
        assert row["message_count"] == (len(sent) if number == 0 else None)
