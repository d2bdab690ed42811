"""The certificates this Python trusts, in a file Java can read: a Java of its own knows fewer."""

from __future__ import annotations

import ssl
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Java's own key store format: magic number, version, entries; a reader without a password
# does not look for the digest at the end.
_MAGIC, _VERSION, _TRUSTED, _NO_DATE = 0xFEEDFEED, 2, 2, 0


def trusted_by_python() -> tuple[bytes, ...]:
    """The certificate authorities of the system or of SSL_CERT_FILE, each in DER."""
    return tuple(ssl.create_default_context().get_ca_certs(binary_form=True))


def write_trust_store(path: Path, certificates: Iterable[bytes]) -> None:
    """Write `certificates` for Java's setting `javax.net.ssl.trustStore`."""
    entries = [_entry(number, each) for number, each in enumerate(certificates)]
    path.write_bytes(struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries))


def _entry(number: int, certificate: bytes) -> bytes:
    head = struct.pack(">I", _TRUSTED) + _text(str(number)) + struct.pack(">Q", _NO_DATE)
    return head + _text("X.509") + struct.pack(">I", len(certificate)) + certificate


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
