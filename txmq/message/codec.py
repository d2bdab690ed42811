"""Bodies as they are stored: encoded by the user's codec, or erased.

AES-256-GCM with a ring of keys is a codec of txmq, with the extra `encryption`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import (
    BodyCodecError,
    ConfigError,
    EnvironmentProblemError,
    MessageTooLargeError,
    step_for_extra,
)
from txmq.ground.columns import Flags, whole
from txmq.message.ids import message_id
from txmq.message.message import Message, stored_with
from txmq.message.names import ORIGIN_MESSAGE_ID, is_group_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


ERASED = "__txmq_erased"
CONTENT = ("tags", "keys", "body", "properties", "sharding_key")
# The same in every table, so that a copy is equal to its half.
_LEFT: Mapping[str, Any] = {"body": b"", "properties": [(ERASED, "true")]}
# Users cannot set these. A body without a key is stored as it was sent.
BODY_KEY_ID, BODY_MESSAGE_ID = "__txmq_body_key", "__txmq_body_of"
BODY_TOPIC = "__txmq_body_topic"
BODY_MARKS = frozenset([BODY_KEY_ID, BODY_MESSAGE_ID, BODY_TOPIC])
MAX_KEY_ID_CHARACTERS = 64
KEY_BYTES = 32
_FORMAT = b"\x01"
_NONCE_BYTES, _TAG_BYTES = 12, 16
_FRONT_BYTES = len(_FORMAT) + _NONCE_BYTES


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
        """Return the bytes to store. An error refuses the send; its text is not shown."""
        ...

    def decode(self, stored: bytes, context: BodyContext) -> bytes:
        """Return the body. Raises: BodyCodecError, or anything else, if it cannot be had."""
        ...


def encoded(message: Message, codec: BodyCodec, transaction_id: str, sequence: int) -> Message:
    """Return the message with its stored body, and the id of its key among its properties.

    Raises: BodyCodecError where the codec fails, or gives no bytes.
    """
    key_id = _checked_key_id(codec.key_id)
    context = BodyContext(message.topic, message_id(transaction_id, sequence), key_id)
    stored = _called(codec.encode, message.body, context, "encoded")
    marks = {BODY_KEY_ID: key_id, BODY_MESSAGE_ID: context.message_id, BODY_TOPIC: context.topic}
    return stored_with(message, body=stored, properties={**message.properties, **marks})


def decoded(row: Mapping[str, Any], codec: BodyCodec) -> bytes:
    """Return the body of a stored row with topic, message_id, body and properties.

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
    """Return the context of the message as it was first sent.

    A body of another message is read only where a message says that it is a retry, a dead letter or
    a replay. A dead letter that another group reads names itself as the topic of its retry, and
    earlier versions named a replay as its own origin, so the first topic and the first id are kept.
    """
    first_topic = properties.get(BODY_TOPIC, topic) if is_group_topic(topic) else topic
    is_copy = ORIGIN_MESSAGE_ID in properties
    first_id = properties.get(BODY_MESSAGE_ID, own_id) if is_copy else own_id
    return BodyContext(first_topic, first_id, key_id)


def _called(work: Any, content: bytes, context: BodyContext, what: str) -> bytes:
    """Call the user's code; of its errors show the type alone, for texts may be secret."""
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


def check_stored_size(message: Message, max_bytes: int) -> None:
    """Raise MessageTooLargeError where the encoded body is above the limit of the store."""
    if len(message.body) > max_bytes:
        raise MessageTooLargeError("encoded body bytes", len(message.body), max_bytes)


def checked_codec(codec: object) -> Any:
    """Return a codec with all its methods, or None. Raises: ConfigError."""
    if codec is None:
        return None
    missing = [name for name in ("encode", "decode") if not callable(getattr(codec, name, None))]
    if missing or not hasattr(codec, "key_id"):
        problem = f"body_codec: {type(codec).__name__} is no BodyCodec"
        raise ConfigError([f"{problem}; it needs key_id, encode and decode"])
    return codec


def reading_codec(codec: object, *, requires_encoded: bool) -> Any:
    """Return what decodes for a reader; None if nothing does.

    Raises: ConfigError for what is no codec, and where one is required and none is there.
    """
    checked = checked_codec(codec)
    if requires_encoded and checked is None:
        raise ConfigError(["require_encoded: needs a body_codec, which decodes the bodies"])
    return EncodedOnly(checked) if requires_encoded else checked


class EncodedOnly:
    """A codec for readers that take nothing else than what a codec has encoded."""

    def __init__(self, codec: BodyCodec) -> None:
        """Decode by `codec`."""
        self.key_id, self.encode, self.decode = codec.key_id, codec.encode, codec.decode


def key_id_problem(key_id: object) -> str | None:
    """Say what the id of a key must be; None if it is that."""
    is_text = isinstance(key_id, str) and key_id.isascii() and key_id.isprintable()
    if is_text and str(key_id).strip() and len(str(key_id)) <= MAX_KEY_ID_CHARACTERS:
        return None
    return f"must be 1 to {MAX_KEY_ID_CHARACTERS} printable ASCII characters"


def _checked_key_id(key_id: object) -> str:
    if (problem := key_id_problem(key_id)) is not None:
        raise ConfigError([f"body_codec: key_id {problem}"])
    return str(key_id)


# --- encryption -----------------------------------------------------------------------------------


class AesGcmCodec:
    """Encrypts bodies by AES-256-GCM: the newest key encrypts, all keys decrypt.

    A stored body is a byte for the format, the nonce, the encrypted body and its tag: 29 bytes
    more than the body. Topic, message id and key id are authenticated, so nobody without a key can
    make or change a stored body, or have it read in another topic. In its own topic whoever writes
    the tables can repeat it: under a message that says it is a copy of the first one. The nonce is
    a keyed hash of body and context: an append that is repeated writes the same bytes, and nothing
    else repeats a nonce. Safe for many threads.

    A body without a key is taken as it is, unless the consumer has `require_encoded=True`.

    Remove a key from the ring and all bodies under it are unreadable for good (crypto-shredding).

    Args:
        keys: key ids and keys of 32 random bytes, oldest first; the last one encrypts.

    Raises:
        ConfigError: no key, a wrong id or a wrong length; no key is shown.
        EnvironmentProblemError: the package cryptography is not installed.

    Example:
        >>> codec = AesGcmCodec({"2026-07": secrets.token_bytes(32)})
        >>> codec
        AesGcmCodec(key_ids=['2026-07'])
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Check the keys."""
        if faults := list(_faults(keys)):
            raise ConfigError(faults)
        cipher = _cipher()
        self._ciphers: dict[str, AESGCM] = {name: cipher(key) for name, key in keys.items()}
        self._nonce_keys = {name: _derived(key) for name, key in keys.items()}
        self.key_id = list(keys)[-1]

    def __repr__(self) -> str:
        """Show the ids of the keys; never a key."""
        return f"AesGcmCodec(key_ids={list(self._ciphers)})"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled: keys would be written where nobody looks for them."""
        raise TypeError("an AesGcmCodec holds keys and is not pickled; make it in each process")

    def encode(self, body: bytes, context: BodyContext) -> bytes:
        """Encrypt a body. Raises: BodyCodecError for a key that is not in the ring."""
        cipher, bound = self._cipher(context, "encoded"), _bound(context)
        digest = hmac.new(self._nonce_keys[context.key_id], bound, hashlib.sha256)
        digest.update(body)
        nonce = digest.digest()[:_NONCE_BYTES]
        return _FORMAT + nonce + cipher.encrypt(nonce, body, bound)

    def decode(self, stored: bytes, context: BodyContext) -> bytes:
        """Decrypt a body. Raises: BodyCodecError if the key is gone, or bytes changed."""
        from cryptography.exceptions import InvalidTag

        cipher = self._cipher(context, "decoded")
        if len(stored) < _FRONT_BYTES + _TAG_BYTES or not stored.startswith(_FORMAT):
            problem = "the stored bytes are none that this codec writes"
            raise BodyCodecError(context.message_id, context.key_id, "decoded", problem)
        nonce = stored[len(_FORMAT) : _FRONT_BYTES]
        try:
            return cipher.decrypt(nonce, stored[_FRONT_BYTES:], _bound(context))
        except InvalidTag:
            problem = "the bytes, the topic or the message id changed, or the key is another one"
            raise BodyCodecError(context.message_id, context.key_id, "decoded", problem) from None

    def _cipher(self, context: BodyContext, what: str) -> AESGCM:
        cipher = self._ciphers.get(context.key_id)
        if cipher is None:
            problem = "this key is not in the ring; it was removed, or is not here yet"
            raise BodyCodecError(context.message_id, context.key_id, what, problem)
        return cipher


def _cipher() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        what = "bodies are to be encrypted, and cryptography is not installed"
        raise EnvironmentProblemError(what, step_for_extra("encryption")) from error
    return AESGCM


def _bound(context: BodyContext) -> bytes:
    """Return what is authenticated beside the body; lengths keep neighbours apart."""
    texts = [text.encode() for text in (context.topic, context.message_id, context.key_id)]
    return b"txmq-body-1" + b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def _derived(key: bytes) -> bytes:
    """Derive a key of its own for nonces: no key serves two purposes."""
    return hmac.new(key, b"txmq-body-nonce-1", hashlib.sha256).digest()


def _faults(keys: Any) -> list[str]:
    if not isinstance(keys, Mapping) or not keys:
        return ["keys: must be key ids and keys of 32 bytes, and at least one"]
    faults = []
    for place, (name, key) in enumerate(keys.items(), 1):
        if (problem := key_id_problem(name)) is not None:
            faults.append(f"keys: the id of key {place} {problem}")
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            faults.append(f"keys: key {place} must be {KEY_BYTES} bytes")
    return faults


# --- erased messages ------------------------------------------------------------------------------


def erased(rows: pa.Table, chosen: Flags, columns: Sequence[str] = CONTENT) -> pa.Table:
    """Return rows of which the chosen ones keep nothing in `columns`, which may have any type."""
    count = rows.num_rows
    sources = pa.array(np.where(chosen, count, np.arange(count)))
    for name in columns:
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        left = pa.array([_LEFT.get(name)], field.type)
        values = pa.concat_arrays([whole(rows[name]), left]).take(sources)
        rows = rows.set_column(place, field, values)
    return rows


def are_erased(properties: pa.ChunkedArray | pa.Array) -> Flags | None:
    """Tell which rows are erased, by their column `properties`; None if none is."""
    column = whole(properties)
    # Of a slice these are the names of all rows; most rows have few properties.
    if not len(column) or pc.index(column.keys, ERASED).as_py() < 0:
        return None
    marks = pc.map_lookup(column, pa.scalar(ERASED), "first")
    flags: Flags = pc.is_valid(marks).to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def without_erased(rows: pa.Table) -> pa.Table:
    """Return the rows that are not erased; they have a column `properties`."""
    flags = are_erased(rows["properties"])
    return rows if flags is None else rows.filter(pa.array(~flags))


def is_erased(properties: Any) -> bool:
    """Tell whether a row is erased, by its properties as a mapping or as pairs."""
    return ERASED in dict(properties or ())
