"""Finds the faults of single settings and describes each one in a line; `Config` asks it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, TypeVar

from txmq.errors import ConfigError, InvalidNameError
from txmq.message.names import check_stored_group, stored_name

LISTENER_CLASS = "class"
VARIABLE, ACCEPT_UNSIGNED = "variable", "accept_unsigned"
_REFERENCE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LISTENER = "package.module:Class, or to {class: package.module:Class, argument: value}"
# Names of variables are upper case here, so that a key in this place is told.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}", re.ASCII)
_CLAIM_KEY = (
    "the NAME_OF_A_VARIABLE that holds its key, or to "
    "{variable: NAME_OF_A_VARIABLE, accept_unsigned: true}"
)
# A hundred years in each unit that a name ends with; Python has no times much later.
_CENTURY = {"ms": 3_155_760_000_000.0, "s": 3_155_760_000.0, "h": 876_600.0}
_SHOWN_CHARACTERS = 200
Kind = TypeVar("Kind", bound=type)


def setting(default: Any, doc: str, *, at_least: float | None = None, at_most: float | None = None,
            one_of: tuple[str, ...] = ()) -> Any:  # fmt: skip
    """Return a field of Config with its bounds and its line in conf/txmq.yaml."""
    bounds = {"doc": doc, "at_least": at_least, "at_most": at_most, "one_of": one_of}
    return field(default=default, metadata=bounds)


def refuses_unknown_keys(kind: Kind) -> Kind:
    """Let a dataclass refuse a keyword that is no field and name the nearest one, as files do."""
    init: Any = kind.__init__  # type: ignore[misc]
    known = {spec.name for spec in dataclasses.fields(kind)}

    @functools.wraps(init)
    def checked(self: object, *positional: object, **values: object) -> None:
        if faults := [unknown_key(key, known) for key in values if key not in known]:
            raise ConfigError(faults)
        init(self, *positional, **values)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


def faults_of_value(spec: dataclasses.Field[Any], value: object) -> list[str]:
    """Find the faults of a number, a text or a flag: its type first, then its bounds."""
    check = _CHECKS[str(spec.type)]
    problem = check(value) or _bound_problem(spec, value)
    return [_cut(f"{spec.name} {problem}, not {value!r}")] if problem else []


def _bound_problem(spec: dataclasses.Field[Any], value: Any) -> str | None:
    at_least, at_most = spec.metadata["at_least"], spec.metadata["at_most"]
    if spec.metadata["one_of"] and value not in spec.metadata["one_of"]:
        return "must be one of " + ", ".join(spec.metadata["one_of"])
    if at_least is not None and value < at_least:
        return f"must be at least {at_least:,}"
    if at_most is not None and value > at_most:
        return f"must be at most {at_most:,}"
    longest = _CENTURY.get(spec.name.rpartition("_")[2]) if at_most is None else None
    if longest is not None and value > longest:
        return f"must be at most {longest:,.0f}, which is 100 years"
    return None


def _number_problem(value: object) -> str | None:
    # In Python a bool is an int, and YAML reads `yes` as a bool.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    return None if abs(value) <= sys.float_info.max else "must be finite"


def _whole_problem(value: object) -> str | None:
    return None if type(value) is int else "must be a whole number"


def _flag_problem(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _text_problem(value: object) -> str | None:
    return None if isinstance(value, str) else "must be text"


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "float": _number_problem,
    "int": _whole_problem,
    "bool": _flag_problem,
    "str": _text_problem,
}


def faults_of_listeners(value: object) -> list[str]:
    """Find the faults of `listeners`: group names, references to classes, and their arguments."""

    def what_it_is(listener: object) -> str:
        # The value may be a misplaced secret, so show its type only.
        shown = listener if isinstance(listener, str) else type(listener).__name__
        return f", not {shown!r}"

    return _faults_by_group("listeners", value, _LISTENER, _is_listener, what_it_is)


def _is_listener(value: object) -> bool:
    if not isinstance(value, Mapping):
        return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None
    names_are_names = all(isinstance(key, str) and key.isidentifier() for key in value)
    reference = value.get(LISTENER_CLASS)
    return names_are_names and isinstance(reference, str) and _is_listener(reference)


def faults_of_claim_keys(value: object) -> list[str]:
    """Find the faults of `claim_keys`: group names, and what is no name of a variable."""
    # The value may be the secret itself, so nothing of it is shown.
    return _faults_by_group("claim_keys", value, _CLAIM_KEY, _is_claim_key, lambda _: "")


def _is_claim_key(entry: object) -> bool:
    settings = {VARIABLE: entry} if isinstance(entry, str) else entry
    if not isinstance(settings, Mapping) or set(settings) - {VARIABLE, ACCEPT_UNSIGNED}:
        return False
    name, flag = settings.get(VARIABLE), settings.get(ACCEPT_UNSIGNED, False)
    return isinstance(flag, bool) and isinstance(name, str) and bool(_VARIABLE.fullmatch(name))


def _faults_by_group(
    key: str,
    value: object,
    needed: str,
    is_right: Callable[[object], bool],
    what_it_is: Callable[[object], str],
) -> list[str]:
    """Find the faults of a mapping from producer groups to values that must pass `is_right`."""
    if not isinstance(value, Mapping):
        return [f"{key} must map a producer group to {needed}"]
    faults = _double_faults(key, value)
    for group, entry in value.items():
        faults += _name_faults(key, group)
        if not is_right(entry):
            faults.append(_cut(f"{key}: {group!r} needs {needed}{what_it_is(entry)}"))
    return faults


def faults_of_groups(
    name: str,
    value: object,
    specs: Mapping[str, dataclasses.Field[Any]],
    allowed: Collection[str],
) -> list[str]:
    """Find the faults of settings by group: names, keys that are not `allowed`, and values.

    `name` is that of the setting: `groups` for producer groups, `consumer_groups` for the others.
    """
    if not isinstance(value, Mapping):
        kind = "consumer group" if name == "consumer_groups" else "producer group"
        return [f"{name} must map a {kind} to its own settings"]
    faults = _double_faults(name, value)
    for group, overrides in value.items():
        faults += _name_faults(name, group)
        if not isinstance(overrides, Mapping):
            faults.append(_cut(f"{name}: {group!r} must map settings to values, not {overrides!r}"))
            continue
        of_group = faults_of_overrides(overrides, specs, allowed)
        faults += [_cut(f"{name}: {group!r}: {fault}") for fault in of_group]
    return faults


def faults_of_overrides(
    overrides: Mapping[Any, object],
    specs: Mapping[str, dataclasses.Field[Any]],
    allowed: Collection[str],
) -> list[str]:
    """Find the faults of the settings of one group: keys that are not `allowed`, and values."""
    faults: list[str] = []
    for key, value in overrides.items():
        if key in allowed:
            faults += faults_of_value(specs[key], value)
        elif key in specs:
            faults.append(
                f"{key} holds for the whole store; a group may have " + ", ".join(allowed)
            )
        else:
            faults.append(unknown_key(key, allowed))
    return faults


def _double_faults(key: str, value: Mapping[Any, object]) -> list[str]:
    """Find groups that appear in both spellings, `tenant%group` and `tenant.group`."""
    counts = Counter(stored_name(group) for group in value if isinstance(group, str))
    return [f"{key}: {group!r} is named twice" for group, count in counts.items() if count > 1]


def _name_faults(key: str, group: Any) -> list[str]:
    kind = "consumer_group" if key == "consumer_groups" else "producer_group"
    try:
        check_stored_group(stored_name(group) if isinstance(group, str) else group, kind)
    except InvalidNameError as error:
        return [f"{key}: {error}"]
    return []


def unknown_key(key: object, known: Collection[str]) -> str:
    """Describe a key that is no setting, and name the nearest one that is."""
    return f"{key!r} is not a setting{nearest_name(key, known)}"


def nearest_name(name: object, known: Collection[str]) -> str:
    """Return the end of an error about an unknown name: the known name that is most like it."""
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def is_nearly(key: str, names: Collection[str]) -> bool:
    """Tell whether a key that is no setting is probably a misspelt setting."""
    return bool(difflib.get_close_matches(key, names, n=1, cutoff=0.85))


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARACTERS]
