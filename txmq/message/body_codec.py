"""Body codecs: the user's code that turns bodies into stored bytes and back (decision 0061).

A producer encodes a body once, when its place in the transaction is known; consumers decode it when
it is asked for. In between everybody passes the stored bytes on: publisher, retries, dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from txmq.errors import BodyCodecError, ConfigError, MessageTooLargeError
from txmq.message.erased import is_erased
from txmq.message.ids import message_id
from txmq.message.message import Message, stored_with
from txmq.message.names import ORIGIN_MESSAGE_ID, is_group_topic

# Users cannot set these. A body without a key is stored as it was sent.
BODY_KEY_ID, BODY_MESSAGE_ID = "__txmq_body_key", "__txmq_body_of"
BODY_TOPIC = "__txmq_body_topic"
BODY_MARKS = frozenset([BODY_KEY_ID, BODY_MESSAGE_ID, BODY_TOPIC])
MAX_KEY_ID_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class BodyContext:
    """What is known of a body when it is encoded, and the same when it is decoded.

    Attributes:
        topic: the stored name of the topic to which the message was first sent.
        message_id: of the message that was first sent; retries and dead letters keep it.
        key_id: which key encodes; stored beside the body.
    """

    topic: str
    message_id: str
    key_id: str


class BodyCodec(Protocol):
    """Turns bodies into stored bytes and back. It must be safe for many threads.

    `encode` must give the same bytes for the same body and context: a sender that repeats an append
    writes the message again, and two rows that differ contradict each other.
    """

    @property
    def key_id(self) -> str:
        """The key that encodes new bodies: 1 to 64 printable ASCII characters, no secret."""
        ...

    def encode(self, body: bytes, context: BodyContext) -> bytes:
        """The bytes to store. An error refuses the send; its text is not shown."""
        ...

    def decode(self, stored: bytes, context: BodyContext) -> bytes:
        """The body. Raises: BodyCodecError, or anything else, where it cannot be had."""
        ...


def checked_codec(codec: object) -> Any:
    """A codec with all its methods, or None. Raises: ConfigError."""
    if codec is None:
        return None
    missing = [name for name in ("encode", "decode") if not callable(getattr(codec, name, None))]
    if missing or not hasattr(codec, "key_id"):
        problem = f"body_codec: {type(codec).__name__} is no BodyCodec"
        raise ConfigError([f"{problem}; it needs key_id, encode and decode"])
    return codec


class EncodedOnly:
    """A codec for readers that take nothing else than what a codec has encoded."""

    def __init__(self, codec: BodyCodec) -> None:
        """`codec` decodes."""
        self.key_id, self.encode, self.decode = codec.key_id, codec.encode, codec.decode


def reading_codec(codec: object, *, requires_encoded: bool) -> Any:
    """What decodes for a reader; None where nothing does.

    Raises: ConfigError for what is no codec, and where one is required and none is there.
    """
    checked = checked_codec(codec)
    if requires_encoded and checked is None:
        raise ConfigError(["require_encoded: needs a body_codec, which decodes the bodies"])
    return EncodedOnly(checked) if requires_encoded else checked


def encoded(message: Message, codec: BodyCodec, transaction_id: str, sequence: int) -> Message:
    """The message with its stored body, and the id of its key among its properties.

    Raises: BodyCodecError where the codec fails, or gives no bytes.
    """
    key_id = _checked_key_id(codec.key_id)
    context = BodyContext(message.topic, message_id(transaction_id, sequence), key_id)
    stored = _called(codec.encode, message.body, context, "encoded")
    marks = {BODY_KEY_ID: key_id, BODY_MESSAGE_ID: context.message_id, BODY_TOPIC: context.topic}
    return stored_with(message, body=stored, properties={**message.properties, **marks})


def check_stored_size(message: Message, max_bytes: int) -> None:
    """Raise MessageTooLargeError where the encoded body is above the limit of the store."""
    if len(message.body) > max_bytes:
        raise MessageTooLargeError("encoded body bytes", len(message.body), max_bytes)


def decoded(row: Mapping[str, Any], codec: BodyCodec) -> bytes:
    """The body of a stored row with topic, message_id, body and properties.

    Raises: BodyCodecError.
    """
    properties = dict(row["properties"] or ())
    if is_erased(properties):
        return b""
    key_id = properties.get(BODY_KEY_ID)
    if key_id is None:
        return _plain(row, codec)
    context = _context_of(row["topic"], row["message_id"], properties, key_id)
    return _called(codec.decode, bytes(row["body"]), context, "decoded")


def _plain(row: Mapping[str, Any], codec: BodyCodec) -> bytes:
    if isinstance(codec, EncodedOnly):
        problem = "no codec has encoded it, and this consumer requires that (require_encoded)"
        raise BodyCodecError(row["message_id"], "", "decoded", problem)
    return bytes(row["body"])


def _context_of(topic: str, own_id: str, properties: Mapping[str, str], key_id: str) -> BodyContext:
    """That of the message as it was first sent.

    A body of another message is read only where a message says that it is a retry, a dead letter or
    a replay. A replay or a dead letter that fails again names itself as its origin, so the first
    topic and the first id are kept.
    """
    first_topic = properties.get(BODY_TOPIC, topic) if is_group_topic(topic) else topic
    is_copy = ORIGIN_MESSAGE_ID in properties
    first_id = properties.get(BODY_MESSAGE_ID, own_id) if is_copy else own_id
    return BodyContext(first_topic, first_id, key_id)


def _called(work: Any, content: bytes, context: BodyContext, what: str) -> bytes:
    """What the user's code gives; of its errors only the type is shown, for texts may be secret."""
    try:
        result = work(content, context)
    except BodyCodecError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        problem = f"the codec raised {type(error).__name__}"
        raise BodyCodecError(context.message_id, context.key_id, what, problem) from None
    if not isinstance(result, bytes):
        problem = f"the codec gave {type(result).__name__} and not bytes"
        raise BodyCodecError(context.message_id, context.key_id, what, problem)
    return result


def key_id_problem(key_id: object) -> str | None:
    """What the id of a key must be; None where it is that."""
    is_text = isinstance(key_id, str) and key_id.isascii() and key_id.isprintable()
    if is_text and str(key_id).strip() and len(str(key_id)) <= MAX_KEY_ID_CHARACTERS:
        return None
    return f"must be 1 to {MAX_KEY_ID_CHARACTERS} printable ASCII characters"


def _checked_key_id(key_id: object) -> str:
    if (problem := key_id_problem(key_id)) is not None:
        raise ConfigError([f"body_codec: key_id {problem}"])
    return str(key_id)
