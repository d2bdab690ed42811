"""An S3 server for all tests of this folder; each has a folder of the bucket for itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.kit import s3


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    with s3.moto(tmp_path_factory.mktemp("s3") / "moto.log") as running:
        yield running


@pytest.fixture
def lake(server: s3.S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of the bucket; the credentials are in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.BUCKET}/{uuid.uuid4()}"
