"""The settings: typed, frozen, checked at start; unknown keys are refused with the nearest name."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from txmq.errors import ConfigError, InvalidNameError
from txmq.names import check_group

PAYLOAD_ENGINES = ("auto", "arrow", "spark")
COMMITTERS = ("delta-rs",)
# What a store is made with; a running process cannot differ from it.
FIXED_KEYS = ("committer", "half_queues", "checkpoint_interval")

# ValueError: a number or a date that no Python value can be.
_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
_REFERENCE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def setting(default: Any, doc: str, *, at_least: float | None = None, at_most: float | None = None,
            one_of: tuple[str, ...] = ()) -> Any:  # fmt: skip
    """A field of Config with its bounds and its line in conf/txmq.yaml."""
    bounds = {"doc": doc, "at_least": at_least, "at_most": at_most, "one_of": one_of}
    return field(default=default, metadata=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings; names are RocketMQ's in snake_case with their unit.

    Raises:
        ConfigError: every fault at once.

    Example:
        >>> Config(transaction_check_max=3).transaction_check_interval_s
        30.0
    """

    transaction_timeout_s: float = setting(
        6.0, "age of a half before its first check (RocketMQ transactionTimeOut)", at_least=0.001
    )
    transaction_check_interval_s: float = setting(
        30.0, "time between two checks of one transaction", at_least=0.001
    )
    transaction_check_max: int = setting(
        15, "checks before a transaction is discarded", at_least=1, at_most=100_000
    )
    check_trigger_interval_s: float = setting(
        2.0, "how often the check service looks for due transactions", at_least=0.0
    )
    listener_timeout_s: float = setting(
        10.0, "a question still open after this is counted as UNKNOWN", at_least=0.001
    )
    check_threads: int = setting(
        5,
        "questions asked of one listener at the same time (RocketMQ: 2 to 5)",
        at_least=1,
        at_most=1024,
    )
    check_queue_size: int = setting(
        2000, "questions of one round at most (RocketMQ: 2000)", at_least=1, at_most=1_000_000
    )
    check_lease_s: float = setting(
        30.0, "another check service may take over after this silence", at_least=1.0
    )
    recheck_interval_s: float = setting(
        180.0, "how often the check service also looks through the logs", at_least=1.0
    )
    file_reserved_time_h: float = setting(
        72.0, "age at which an ended message may be removed", at_least=1.0
    )
    max_message_size_bytes: int = setting(
        4 * 1024 * 1024, "body of one message", at_least=1, at_most=512 * 1024 * 1024
    )
    max_transaction_size_bytes: int = setting(
        64 * 1024 * 1024, "bodies of one transaction sent message by message", at_least=1
    )
    max_properties_size_bytes: int = setting(
        32767, "keys, tags and properties of one message", at_least=1, at_most=1_048_576
    )
    half_queues: int = setting(
        4, "partitions of the half and op logs; fixed at creation", at_least=1, at_most=4096
    )
    default_topic_queue_nums: int = setting(
        8, "queues of a topic that is created on first use", at_least=1, at_most=4096
    )
    reject_transaction_message: bool = setting(
        default=False, doc="refuse new transactions; open ones still end (R25)"
    )
    committer: str = setting("delta-rs", "who writes Delta's log; fixed at creation",
                             one_of=COMMITTERS)  # fmt: skip
    payload_engine: str = setting(
        "auto", "who copies bodies: arrow, spark, or auto by size", one_of=PAYLOAD_ENGINES
    )
    payload_engine_spark_bytes: int = setting(
        4 * 1024**3, "auto: from this many bytes in one round on, Spark copies", at_least=1
    )
    publish_batch_rows: int = setting(
        100_000, "messages of one round; a larger commit is one round", at_least=1
    )
    publish_batch_bytes: int = setting(
        256 * 1024 * 1024, "a round with more bytes than this is streamed", at_least=1
    )
    publish_drain_s: float = setting(
        10.0, "how long one micro-batch goes on looking for new claims", at_least=0.0
    )
    publish_poll_interval_s: float = setting(
        0.005, "time between two looks at the op log while draining", at_least=0.001
    )
    publish_threads: int = setting(4, "topics written at the same time", at_least=1, at_most=256)
    park_retry_interval_s: float = setting(
        30.0, "time before a parked topic is tried again", at_least=0.01
    )
    group_commit_max_rows: int = setting(
        10_000, "rows that the threads of one process share in a commit", at_least=1
    )
    commit_attempts: int = setting(
        20, "tries of one commit against other writers", at_least=1, at_most=1000
    )
    maintenance_interval_s: float = setting(
        15.0, "time between two rounds of maintenance", at_least=0.01
    )
    compact_target_bytes: int = setting(
        64 * 1024 * 1024, "small files are merged up to this size", at_least=1024 * 1024
    )
    log_reserved_time_s: float = setting(
        300.0, "age at which a commit of half, op or settled that all have read may be cleaned",
        at_least=1.0,
    )  # fmt: skip
    topic_log_reserved_time_h: float = setting(
        24.0, "how long a stream over a topic may stand still and go on", at_least=0.01
    )
    orphan_reserved_time_h: float = setting(
        24.0, "age at which a file that no commit names is removed; longer than any sending takes",
        at_least=1.0,
    )  # fmt: skip
    checkpoint_interval: int = setting(
        25, "commits between two checkpoints of a table's log; fixed at creation", at_least=1
    )
    listeners: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"doc": "who answers for a producer group: group: package.module:Class"},
    )

    def __post_init__(self) -> None:
        """Check each key, then the pairs, and raise all faults together."""
        faults = [
            fault for spec in fields(self) for fault in _faults(spec, getattr(self, spec.name))
        ]
        faults += [] if faults else self._pair_faults()
        if faults:
            raise ConfigError(faults)
        object.__setattr__(self, "listeners", MappingProxyType(dict(self.listeners)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Settings from a mapping; keys left out keep their defaults."""
        if not isinstance(values, Mapping):
            raise ConfigError([f"settings must be a mapping, not {type(values).__name__}"])
        known = {spec.name for spec in fields(cls)}
        faults = [_unknown(key, known) for key in values if key not in known]
        kept = {key: value for key, value in values.items() if key in known}
        try:
            config = cls(**kept)
        except ConfigError as error:
            raise ConfigError([*faults, *error.faults]) from None
        if faults:
            raise ConfigError(faults)
        return config

    @classmethod
    def from_yaml(cls, path: str | Path) -> Config:
        """Settings from a YAML file such as conf/txmq.yaml."""
        try:
            loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, *_UNREADABLE) as error:
            raise ConfigError([f"{path} cannot be read: {type(error).__name__}"]) from error
        return cls.from_dict({} if loaded is None else loaded)

    @classmethod
    def from_env(cls, prefix: str = "TXMQ_", environ: Mapping[str, str] | None = None) -> Config:
        """Settings from variables such as TXMQ_TRANSACTION_CHECK_MAX; values are read as YAML."""
        variables = os.environ if environ is None else environ
        known = {prefix + spec.name.upper(): spec.name for spec in fields(cls)}
        return cls.from_dict(
            {name: _loaded(variables[key]) for key, name in known.items() if key in variables}
        )

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        return {
            spec.name: dict(value) if isinstance(value, Mapping) else value
            for spec in fields(self)
            for value in [getattr(self, spec.name)]
        }

    def __reduce__(self) -> tuple[object, ...]:
        """Settings may be sent to other processes; a mapping proxy alone could not."""
        return type(self).from_dict, (self.to_dict(),)

    def replace(self, **changes: Any) -> Config:
        """The same settings but for `changes`, checked again."""
        return Config.from_dict({**self.to_dict(), **changes})

    def _pair_faults(self) -> list[str]:
        reserved_s = self.file_reserved_time_h * 3600
        checks_s = self.transaction_timeout_s + (
            self.transaction_check_max * self.transaction_check_interval_s
        )
        faults = []
        if checks_s > reserved_s:
            faults.append(
                f"transaction_timeout_s and transaction_check_max x transaction_check_interval_s "
                f"are {checks_s:,.0f} s, longer than file_reserved_time_h ({reserved_s:,.0f} s)"
            )
        if self.max_transaction_size_bytes < self.max_message_size_bytes:
            faults.append(
                f"max_transaction_size_bytes ({self.max_transaction_size_bytes:,}) is below "
                f"max_message_size_bytes ({self.max_message_size_bytes:,})"
            )
        if self.check_lease_s <= self.listener_timeout_s:
            faults.append(
                f"check_lease_s ({self.check_lease_s:g}) must be above "
                f"listener_timeout_s ({self.listener_timeout_s:g})"
            )
        return faults


def _loaded(text: str) -> object:
    """A variable's value as YAML reads it; the checks then name the key of what it cannot read."""
    try:
        return yaml.safe_load(text)
    except _UNREADABLE:
        return text


def _unknown(key: object, known: set[str]) -> str:
    nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{key!r} is not a setting{hint}"


def _faults(spec: dataclasses.Field[Any], value: object) -> list[str]:
    if spec.name == "listeners":
        return _listener_faults(value)
    check = _CHECKS[str(spec.type)]
    problem = check(value) or _bound_problem(spec, value)
    return [f"{spec.name} {problem}, not {value!r}"[:200]] if problem else []


def _bound_problem(spec: dataclasses.Field[Any], value: Any) -> str | None:
    at_least, at_most = spec.metadata["at_least"], spec.metadata["at_most"]
    if spec.metadata["one_of"] and value not in spec.metadata["one_of"]:
        return "must be one of " + ", ".join(spec.metadata["one_of"])
    if at_least is not None and value < at_least:
        return f"must be at least {at_least:,}"
    if at_most is not None and value > at_most:
        return f"must be at most {at_most:,}"
    return None


def _number_problem(value: object) -> str | None:
    # bool is an int in Python and YAML's `yes` is a bool.
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


def _listener_faults(value: object) -> list[str]:
    if not isinstance(value, Mapping):
        return ["listeners must map a producer group to package.module:Class"]
    faults = []
    for group, reference in value.items():
        try:
            check_group(group)
        except InvalidNameError as error:
            faults.append(f"listeners: {error}")
        if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
            faults.append(
                f"listeners: {group!r} needs package.module:Class, not {reference!r}"[:200]
            )
    return faults
