"""Credentials from a secret scope of Databricks, for compute that sets no variables for a job."""

from __future__ import annotations

import importlib
import re
from collections.abc import MutableMapping
from typing import Any

from txmq.errors import EnvironmentProblemError

# Those of the clouds' own tools, and the settings of txmq.
CREDENTIALS = ("AWS", "AZURE", "GOOGLE", "TXMQ")
_NAME = re.compile(f"(?:{'|'.join(CREDENTIALS)})_[A-Z0-9_]+", re.ASCII)


def variable_of(key: str) -> str | None:
    """The variable that a secret is for, None for another secret.

    A scope on Azure's key vault has no underscores: `azure-storage-account-key` is
    `AZURE_STORAGE_ACCOUNT_KEY`.
    """
    name = key.replace("-", "_").upper()
    return name if _NAME.fullmatch(name) else None


def export_secrets(scope: str, environment: MutableMapping[str, str]) -> list[str]:
    """Put the credentials of a secret scope into an environment; other secrets are not read.

    Args:
        scope: its name; who runs the job needs READ on it. Without a name nothing is done.
        environment: usually `os.environ`.

    Returns:
        The names of the variables, sorted.

    Raises: EnvironmentProblemError outside of Databricks, and for a scope without credentials.
    """
    if not scope:
        return []
    secrets = _secrets()
    names: dict[str, str] = {}
    for key in sorted(str(secret.key) for secret in secrets.list(scope)):
        if name := variable_of(key):
            environment[name] = secrets.get(scope, key)
            names[name] = key
    if not names:
        starts = ", ".join(f"{start}_" for start in CREDENTIALS)
        problem = f"the secret scope {scope!r} has no secret whose name begins with {starts}"
        raise EnvironmentProblemError(problem, f"Run `databricks secrets put-secret {scope} NAME`")
    return sorted(names)


def _secrets() -> Any:
    try:
        runtime = importlib.import_module("databricks.sdk.runtime")
    except ImportError as error:
        problem = "there are no secret scopes here: this is not Databricks"
        step = "Leave --secrets out, and set the variables of the cloud's own tools"
        raise EnvironmentProblemError(problem, step) from error
    return runtime.dbutils.secrets
