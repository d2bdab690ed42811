"""A server for all tests of this folder; each has a folder of the bucket for itself.

`OBJECT_STORE` says which: `s3` (moto, the default) or `azure` (Azurite).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.kit import s3
from tests.process.object_store import azure

SERVERS = {"s3": s3.moto, "azure": azure.azurite}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3 | azure.Azure]:
    serve = SERVERS[os.environ.get("OBJECT_STORE", "s3")]
    with serve(tmp_path_factory.mktemp("server") / "server.log") as running:
        yield running


@pytest.fixture
def lake(server: s3.S3 | azure.Azure, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of the bucket; the credentials are in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.location(s3.BUCKET, str(uuid.uuid4()))
