"""The values of settings: frozen in a Config, plain in JSON and YAML, texts in variables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

# ValueError: a number or a date that Python cannot represent.
UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)


def frozen(value: Any) -> Any:
    """The value with mappings that cannot be changed."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(inner) for key, inner in value.items()})
    return value


def plain(value: object) -> object:
    """The value with mappings as dicts."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return value


def loaded(text: str) -> object:
    """The value of a variable, read as YAML; else its text, so that the checks name its key."""
    try:
        return yaml.safe_load(text)
    except UNREADABLE:
        return text
