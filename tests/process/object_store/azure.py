"""Azurite, a server of Azure's blob storage on this machine, which `make azurite` installs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.kit.s3 import BUCKET, free_port, running

# Known to everybody: the account that each Azurite has.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2020-10-02"


@dataclass(frozen=True)
class Azure:
    """A running server with one container."""

    port: int
    address_variable = "AZURITE_BLOB_STORAGE_URL"
    secret = KEY

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What clients find in their environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true",
            self.address_variable: self.endpoint,
        }

    @staticmethod
    def location(container: str, folder: str) -> str:
        """A folder of a container, as Databricks and Hadoop spell it."""
        return f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/{folder}"


@contextmanager
def azurite(log: Path) -> Iterator[Azure]:
    """A server in memory, with an empty container."""
    port = free_port()
    command = [
        _program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent",
        "--skipApiVersionCheck", "--inMemoryPersistence",
    ]  # fmt: skip
    with running(command, port, log, {}):
        _make_container(f"http://127.0.0.1:{port}", BUCKET)
        yield Azure(port)


def azurite_program() -> str | None:
    """Where the server is; None if it is not installed."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


def _program() -> str:
    program = azurite_program()
    if program is None:
        raise RuntimeError("azurite-blob is not installed; run make azurite")
    return program


def _make_container(endpoint: str, container: str) -> None:
    """One signed request; a library for it would be the only use of that library."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = f"x-ms-date:{date}\nx-ms-version:{_VERSION}"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, headers, resource])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256))
    request = urllib.request.Request(  # noqa: S310 - this machine
        f"{endpoint}/{ACCOUNT}/{container}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{signature.decode()}",
            "Content-Length": "0",
        },
    )
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - this machine
