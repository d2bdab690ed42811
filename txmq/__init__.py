"""Transactional messages for the lakehouse: visible if and only if the local change took place.

`__init__.pyi` lists all names, each with its module. A module is loaded when a name of it is first
used, so a producer does not wait for Spark's or a consumer's.
"""

from __future__ import annotations

import ast
import pkgutil
from functools import cache, partial
from importlib import import_module

from txmq import errors  # noqa: F401
from txmq.ground import sessions

# Bound now, for the import of a module of `txmq.verify` would bind the package in its place.
from txmq.verify import verify  # noqa: F401

# The core asks Spark for things through this door, and knows no name of the room.
sessions.DOOR.load = partial(import_module, "txmq.spark.door")


def __getattr__(name: str) -> object:
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        raise AttributeError(f"module 'txmq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_homes()[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})


@cache
def _homes() -> dict[str, str]:
    """Return the module of each public name, as the stub lists them."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    return {
        name.name: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
    }
