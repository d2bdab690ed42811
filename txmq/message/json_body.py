"""Bodies in JSON: plain values by Python's own module, models and dataclasses by pydantic.

No error shows what is in a body.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from txmq.errors import (
    ConfigError,
    EnvironmentProblemError,
    InvalidBodyError,
    shown,
    step_for_extra,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# The order of a set differs from process to process, and bytes are a body already.
_WITHOUT_JSON = (set, frozenset, bytes, bytearray, memoryview)
# Of a body with many faults the first ones tell enough.
FAULTS_SHOWN = 3
ADAPTERS_KEPT = 256
# The types of pandas' missing values, which a message without pandas does not load.
_MISSING = ("NaTType", "NAType")


def json_body(value: object) -> bytes:
    """Return a value as a body: JSON in UTF-8, without spaces, keys in their own order.

    The same value gives the same bytes, so a retry with an idempotency key may make them again.
    Keys that are numbers, dates or the like become texts. A scalar of numpy or pandas counts as the
    value of Python that it stands for; a missing one (NaN, NaT, NA) is refused.

    Args:
        value: a dict, list, text, number, truth value or None; or a pydantic model, a dataclass, a
            NamedTuple or another value that pydantic can write (extra `pydantic`).

    Raises:
        InvalidBodyError: a part of the value has no JSON, such as NaN; or it has a set, whose order
            differs from process to process, also in a model whose field has no serializer that
            makes a list of it; or two keys of a dict have the same text.
        EnvironmentProblemError: the value needs pydantic, which is not installed.
    """
    try:
        text = json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except InvalidBodyError:
        raise
    except (ValueError, RecursionError) as error:
        # Of NaN, of a value that holds itself, of half a surrogate pair.
        problem = f"has a value without JSON ({type(error).__name__}); send only what JSON can hold"
        raise InvalidBodyError("body", problem) from None


def _plain(value: object) -> Any:
    """Convert a value to dicts with texts as keys, lists, texts and numbers."""
    value = _of_python(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, dict):
        plain = dict(zip(map(_key, value), map(_plain, value.values()), strict=True))
        _check_keys(plain, value)
        return plain
    _check_has_json(value)
    return _by_pydantic(value)


def _of_python(value: object) -> object:
    """Return a scalar of numpy or pandas as a value of Python, any other value as it is.

    Raises: InvalidBodyError for a missing value, and for a time of numpy.
    """
    if isinstance(value, (np.datetime64, np.timedelta64)):
        problem = f"has a {type(value).__name__} of numpy, whose unit JSON cannot say"
        raise InvalidBodyError("body", f"{problem}; pass a datetime, as pandas.Timestamp(value) is")
    value = value.item() if isinstance(value, np.generic) else value
    if type(value).__name__ in _MISSING or (isinstance(value, float) and isnan(value)):
        problem = "has a missing value (NaN, NaT or NA), which has no JSON"
        advice = "pass None, as df.astype(object).where(df.notna(), None) does"
        raise InvalidBodyError("body", f"{problem}; {advice}")
    if isinstance(value, datetime) and hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    if isinstance(value, timedelta) and hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value


def _key(key: object) -> str:
    """Return the text of a key. Raises: InvalidBodyError for NaN."""
    key = _of_python(key)
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (int, float)):
        (text,) = json.loads(json.dumps({key: 0}, allow_nan=False))
        return str(text)
    _check_has_json(key)
    # Of a model the text of the key may show a set.
    _by_pydantic(key)
    return _texts([key])[0]


def _texts(keys: Iterable[Any]) -> list[str]:
    """Return the keys of a dict as pydantic writes them; of equal texts there is one."""
    return list(_by_pydantic(dict.fromkeys(keys)))


def _check_keys(texts: Collection[str], keys: Collection[Any]) -> None:
    if len(texts) < len(keys):
        problem = "has a dict in which two keys are the same text in JSON"
        raise InvalidBodyError("body", f"{problem}; give each key a text of its own")


def _check_has_json(value: object) -> None:
    if isinstance(value, _WITHOUT_JSON):
        problem = f"has a {type(value).__name__}, which has no JSON"
        raise InvalidBodyError("body", f"{problem}; pass a list, or bytes to Message itself")


def _by_pydantic(value: object) -> Any:
    try:
        adapter = adapter_of(type(value))
        if not isinstance(value, dict):
            _check_dumped(adapter.dump_python(value, warnings="error"))
        return adapter.dump_python(value, mode="json", warnings="error")
    except (EnvironmentProblemError, InvalidBodyError):
        raise
    except Exception as error:  # noqa: BLE001 - a model of the user's may raise anything
        problem = f"is of the type {type(value).__name__}, which has no JSON"
        advice = f"({type(error).__name__}); pass a model, a dataclass or plain values"
        raise InvalidBodyError("body", f"{problem} {advice}") from None


def _check_dumped(value: object) -> None:
    """Refuse what pydantic would write all the same: sets as lists, NaN as null, equal keys."""
    if isinstance(value, (set, frozenset)):
        problem = f"has a {type(value).__name__}, whose order differs from process to process"
        raise InvalidBodyError("body", f"{problem}; use a list, or a serializer that makes one")
    if isinstance(value, float) and not isfinite(value):
        raise InvalidBodyError("body", "has a number without JSON; send only finite numbers")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            _check_keys(_texts(value), value)
        value = value.values()
    elif not isinstance(value, (list, tuple, deque)):
        return
    for item in value:
        _check_dumped(item)


def parsed_json(body: bytes, message_id: str, model: type[Any] | None = None) -> Any:
    """Return the value of a body in JSON.

    Args:
        body: JSON in UTF-8.
        message_id: names the message in an error.
        model: what pydantic shall make of it, such as a model or a dataclass; plain Python values
            without it.

    Raises:
        InvalidBodyError: the body is no JSON, or does not fit the model.
        EnvironmentProblemError: `model` needs pydantic, which is not installed.
    """
    if model is None:
        return _parsed(body, message_id)
    adapter = adapter_of(model)
    from pydantic import ValidationError

    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_context=False, include_url=False)
        problems = "; ".join(map(_problem, faults[:FAULTS_SHOWN]))
        raise InvalidBodyError(
            "body", f"of {shown(message_id)} is no {_name(model)}: {problems}"
        ) from None


def _parsed(body: bytes, message_id: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        position = f" at byte {error.pos:,}" if isinstance(error, json.JSONDecodeError) else ""
        problem = f"of {shown(message_id)} is no JSON{position}; read `body`, or ask its sender"
        raise InvalidBodyError("body", problem) from None


def _problem(fault: Mapping[str, Any]) -> str:
    """Tell where a fault is and of which kind; the text of pydantic may quote the body."""
    place = ".".join(map(str, fault["loc"]))
    return f"{place} ({fault['type']})" if place else str(fault["type"])


def adapter_of(model: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and writes values of a type; it is made once for each type.

    Raises: EnvironmentProblemError without pydantic; ConfigError for a type that it refuses.
    """
    try:
        return _adapter(cast("Hashable", model))
    except ModuleNotFoundError as error:
        problem = f"{_name(model)} as a body needs the package pydantic"
        raise EnvironmentProblemError(problem, step_for_extra("pydantic")) from error
    except Exception as error:
        problem = f"{shown(model)} is no model of a body ({type(error).__name__})"
        raise ConfigError([f"{problem}; pass a pydantic model, a dataclass or a type"]) from error


@lru_cache(maxsize=ADAPTERS_KEPT)
def _adapter(model: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    adapter = TypeAdapter(model)
    # A type that names others, which are not there, is refused here and not at its first use.
    adapter.rebuild(raise_errors=True)
    return adapter


def _name(model: type[Any]) -> str:
    return getattr(model, "__name__", str(model))
