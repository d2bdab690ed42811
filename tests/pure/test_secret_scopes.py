"""Credentials of a job that come from a secret scope of Databricks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from txmq.errors import EnvironmentProblemError
from txmq.job import export_secrets, variable_of


class Secrets:
    """What `dbutils.secrets` does."""

    def __init__(self, **scopes: dict[str, str]) -> None:
        self.scopes = scopes
        self.read: list[str] = []

    def list(self, scope: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(key=key) for key in self.scopes[scope]]

    def get(self, scope: str, key: str) -> str:
        self.read.append(key)
        return self.scopes[scope][key]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    lake = {"AWS_REGION": "eu-central-1", "azure-storage-account-key": "k", "smtp": "s"}
    secrets = Secrets(lake=lake, mail={"smtp": "s"})
    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=secrets)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    return secrets


def test_credentials_become_variables_and_other_secrets_are_not_read(secrets: Secrets) -> None:
    environment = {"AWS_REGION": "us-east-1", "HOME": "/"}

    names = export_secrets("lake", environment)

    assert names == ["AWS_REGION", "AZURE_STORAGE_ACCOUNT_KEY"]
    assert environment == {
        "AWS_REGION": "eu-central-1", "AZURE_STORAGE_ACCOUNT_KEY": "k", "HOME": "/",
    }  # fmt: skip
    assert "smtp" not in secrets.read


def test_without_a_scope_nothing_is_done(secrets: Secrets) -> None:
    assert export_secrets("", {}) == secrets.read == []


@pytest.mark.usefixtures("secrets")
def test_scope_without_credentials_is_refused_with_the_way_out() -> None:
    with pytest.raises(EnvironmentProblemError, match=r"'mail' has no secret .* put-secret mail"):
        export_secrets("mail", {})


def test_outside_of_databricks_scopes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", None)

    with pytest.raises(EnvironmentProblemError, match="this is not Databricks"):
        export_secrets("lake", {})


def test_outside_of_databricks_its_sdk_alone_has_no_scopes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(EnvironmentProblemError, match="this is not Databricks"):
        export_secrets("lake", {})


@pytest.mark.parametrize("key", ["PATH", "LD_PRELOAD", "aws", "AWS_", "XAWS_REGION", "AWS_RÉGION"])
def test_other_names_are_no_credentials(key: str) -> None:
    assert variable_of(key) is None
