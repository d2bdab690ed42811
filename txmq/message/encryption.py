"""AES-256-GCM for bodies, with a ring of keys: `pip install txmq[encryption]`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txmq.errors import BodyCodecError, ConfigError, EnvironmentProblemError
from txmq.message.body_codec import BodyContext, key_id_problem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_FORMAT = b"\x01"
_NONCE_BYTES, _TAG_BYTES = 12, 16
_FRONT_BYTES = len(_FORMAT) + _NONCE_BYTES


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
        """The ids of the keys; never a key."""
        return f"AesGcmCodec(key_ids={list(self._ciphers)})"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled: keys would be written where nobody looks for them."""
        raise TypeError("an AesGcmCodec holds keys and is not pickled; make it in each process")

    def encode(self, body: bytes, context: BodyContext) -> bytes:
        """The encrypted body. Raises: BodyCodecError for a key that is not in the ring."""
        cipher, bound = self._cipher(context, "encoded"), _bound(context)
        digest = hmac.new(self._nonce_keys[context.key_id], bound, hashlib.sha256)
        digest.update(body)
        nonce = digest.digest()[:_NONCE_BYTES]
        return _FORMAT + nonce + cipher.encrypt(nonce, body, bound)

    def decode(self, stored: bytes, context: BodyContext) -> bytes:
        """The body. Raises: BodyCodecError for a key that is gone, and for bytes that changed."""
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
        raise EnvironmentProblemError(what, "Run: pip install 'txmq[encryption]'") from error
    return AESGCM


def _bound(context: BodyContext) -> bytes:
    """What is authenticated beside the body; lengths keep neighbours apart."""
    parts = [text.encode() for text in (context.topic, context.message_id, context.key_id)]
    return b"txmq-body-1" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _derived(key: bytes) -> bytes:
    """A key of its own for nonces: no key serves two purposes."""
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
