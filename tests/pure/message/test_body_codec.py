"""Encrypted bodies: what is bound to what, which keys read, and that no text shows a secret."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from txmq.errors import BodyCodecError, ConfigError
from txmq.message.codec import (
    BODY_KEY_ID,
    BODY_MESSAGE_ID,
    BODY_TOPIC,
    ERASED,
    AesGcmCodec,
    BodyContext,
    checked_codec,
    decoded,
    encoded,
    reading_codec,
)
from txmq.message.message import Message
from txmq.message.names import ORIGIN_MESSAGE_ID, ORIGIN_TOPIC

OLD, NEW = b"o" * 32, b"n" * 32
BODY = b"SECRET body"
CONTEXT = BodyContext("order-paid", "id:0", "old")
ID = "01a20d2d-f395-7e75-a77f-b0e43d8c1041"


def row(message: Message, **changes: Any) -> dict[str, Any]:
    properties = list(message.properties.items())
    made = {"topic": message.topic, "message_id": f"{ID}:0", "body": message.body}
    return {**made, "properties": properties, **changes}


def stored(codec: Any, body: bytes = BODY) -> Message:
    return encoded(Message("order-paid", body, properties={"a": "b"}), codec, ID, 0)


@given(some.binary(max_size=200))
def test_what_is_encrypted_is_decrypted_and_is_29_bytes_longer(body: bytes) -> None:
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec, body)

    assert decoded(row(message), codec) == body
    assert len(message.body) == len(body) + 29
    marks = {BODY_KEY_ID: "old", BODY_MESSAGE_ID: f"{ID}:0", BODY_TOPIC: "order-paid"}
    assert message.properties == {"a": "b", **marks}


@given(some.integers(0, 39), some.integers(0, 7))
def test_one_flipped_bit_is_told(place: int, bit: int) -> None:
    codec = AesGcmCodec({"old": OLD})
    whole = bytearray(codec.encode(BODY, CONTEXT))
    whole[place] ^= 1 << bit

    with pytest.raises(BodyCodecError) as refused:
        codec.decode(bytes(whole), CONTEXT)
    assert refused.value.key_id == "old"
    assert "SECRET" not in str(refused.value)


def test_repeated_append_writes_the_same_bytes_and_nothing_else_does() -> None:
    codec = AesGcmCodec({"old": OLD, "new": NEW})
    contexts = [
        CONTEXT,
        BodyContext("order-paid", "id:1", "old"),
        BodyContext("other", "id:0", "old"),
        BodyContext("order-paid", "id:0", "new"),
    ]

    assert codec.encode(BODY, CONTEXT) == codec.encode(BODY, CONTEXT)
    made = {codec.encode(body, context)[:13] for context in contexts for body in (BODY, b"other")}
    assert len(made) == 8


def test_newest_key_encrypts_all_keys_decrypt_and_a_removed_one_is_named() -> None:
    before, after = AesGcmCodec({"old": OLD}), AesGcmCodec({"old": OLD, "new": NEW})

    assert stored(after).properties[BODY_KEY_ID] == "new"
    assert decoded(row(stored(before)), after) == BODY
    with pytest.raises(BodyCodecError, match=r"'old'.*not in the ring") as refused:
        decoded(row(stored(before)), AesGcmCodec({"new": NEW}))
    assert (refused.value.key_id, refused.value.message_id) == ("old", f"{ID}:0")


def test_other_key_under_the_same_id_is_told() -> None:
    with pytest.raises(BodyCodecError, match="another one"):
        decoded(row(stored(AesGcmCodec({"k": OLD}))), AesGcmCodec({"k": NEW}))


def test_stored_body_cannot_be_moved_to_another_message_or_topic() -> None:
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec)
    forged = [*message.properties.items(), (ORIGIN_TOPIC, "order-paid")]

    for moved in (
        row(message, message_id=f"{ID}:1"),
        row(message, topic="other"),
        row(message, topic="other", properties=forged),
    ):
        with pytest.raises(BodyCodecError):
            decoded(moved, codec)


def test_stored_body_opens_in_its_own_topic_under_what_says_it_is_a_copy() -> None:
    """As docs/encryption.md says; nowhere else, and never changed."""
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec)
    says = [*message.properties.items(), (ORIGIN_MESSAGE_ID, "any")]

    copy = row(message, message_id="other:0", properties=says)
    assert decoded(copy, codec) == BODY
    for changed in ({"topic": "other"}, {"body": message.body[:-1] + b"x"}):
        with pytest.raises(BodyCodecError):
            decoded({**copy, **changed}, codec)


@pytest.mark.parametrize("topic", ["RETRY_billing", "DLQ_billing"])
def test_retry_and_dead_letter_are_read_as_what_was_first_sent(topic: str) -> None:
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec)
    origin = [(ORIGIN_TOPIC, "order-paid"), (ORIGIN_MESSAGE_ID, f"{ID}:0")]
    properties = [*message.properties.items(), *origin]

    sent_back = row(message, topic=topic, message_id="other:0", properties=properties)
    assert decoded(sent_back, codec) == BODY


def test_replay_and_what_fails_again_after_it_are_read_as_what_was_first_sent() -> None:
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec)
    own = [*message.properties.items()]
    replayed = row(
        message, message_id="replay:0", properties=[*own, (ORIGIN_MESSAGE_ID, f"{ID}:0")]
    )
    # Earlier versions noted the replay as the origin of its retry.
    again = [*own, (ORIGIN_TOPIC, "order-paid"), (ORIGIN_MESSAGE_ID, "replay:0")]
    retried = row(message, topic="RETRY_billing", message_id="retry:0", properties=again)

    assert decoded(replayed, codec) == decoded(retried, codec) == BODY


@pytest.mark.parametrize("topic", ["RETRY_alarm", "DLQ_alarm"])
def test_dead_letter_that_fails_in_another_group_is_read_as_what_was_first_sent(topic: str) -> None:
    codec = AesGcmCodec({"old": OLD})
    message = stored(codec)
    # The other group notes the dead letter as the origin of its retry.
    origin = [(ORIGIN_TOPIC, "DLQ_billing"), (ORIGIN_MESSAGE_ID, "dead:0")]
    properties = [*message.properties.items(), *origin]

    retried = row(message, topic=topic, message_id="retry:0", properties=properties)
    assert decoded(retried, codec) == BODY


def test_body_without_a_key_is_as_it_was_sent_unless_that_is_refused() -> None:
    codec, plain = AesGcmCodec({"old": OLD}), row(Message("order-paid", BODY))
    strict = reading_codec(codec, requires_encoded=True)

    assert decoded(plain, reading_codec(codec, requires_encoded=False)) == BODY
    assert decoded(row(stored(codec)), strict) == BODY
    with pytest.raises(BodyCodecError, match="no codec has encoded it") as refused:
        decoded(plain, strict)
    assert (refused.value.key_id, "SECRET" in str(refused.value)) == ("", False)
    with pytest.raises(ConfigError, match="needs a body_codec"):
        reading_codec(None, requires_encoded=True)
    with pytest.raises(ConfigError, match="no BodyCodec"):
        reading_codec(7, requires_encoded=True)


def test_mark_of_the_erased_smuggles_no_body_in() -> None:
    forged = row(Message("order-paid", BODY), properties=[(ERASED, "true")])

    assert decoded(forged, AesGcmCodec({"old": OLD})) == b""


@pytest.mark.parametrize(
    "keys",
    [{}, None, {"": OLD}, {"k" * 65: OLD}, {"ü": OLD}, {"k": b"SECRET"}, {"k": "SECRET"}, {1: OLD}],
)
def test_wrong_keys_are_refused_and_not_shown(keys: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        AesGcmCodec(keys)

    assert "SECRET" not in str(refused.value)


def test_no_text_and_no_pickle_holds_a_key() -> None:
    codec = AesGcmCodec({"old": b"SECRET" + bytes(26)})

    assert repr(codec) == "AesGcmCodec(key_ids=['old'])"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(codec)


class Broken:
    key_id = "k"

    def encode(self, body: bytes, _: BodyContext) -> Any:
        if body == b"none":
            return None
        problem = f"cannot take {body!r}"
        raise ValueError(problem)

    def decode(self, stored: bytes, context: BodyContext) -> Any:
        return self.encode(stored, context)


@pytest.mark.parametrize(
    ("body", "told"), [(b"none", "gave NoneType"), (BODY, "raised ValueError")]
)
def test_codec_that_breaks_is_told_without_its_text(body: bytes, told: str) -> None:
    with pytest.raises(BodyCodecError, match=told) as refused:
        stored(Broken(), body)

    assert "SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_is_no_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs key_id, encode and decode"):
        checked_codec(object())
    codec = AesGcmCodec({"old": OLD})
    codec.key_id = "two\nlines"
    with pytest.raises(ConfigError, match="printable"):
        stored(codec)
