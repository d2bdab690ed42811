"""The settings: typed, frozen, checked at start; unknown keys are refused with the nearest name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from txmq.errors import ConfigError
from txmq.message.delay_levels import DEFAULT_LEVELS, MAX_DELAY_S, level_seconds
from txmq.message.names import stored_name
from txmq.store.config_faults import (
    faults_of_groups,
    faults_of_listeners,
    faults_of_value,
    is_nearly,
    setting,
    unknown_key,
)

PAYLOAD_ENGINES = ("auto", "arrow", "spark")
COMMITTERS = ("delta-rs",)
# What a store is made with; a running process cannot differ from it.
FIXED_KEYS = ("committer", "half_queues", "checkpoint_interval")

# ValueError: a number or a date that no Python value can be.
_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What holds for the transactions of one producer group; `Config.of_group` makes it."""

    transaction_timeout_s: float
    transaction_check_interval_s: float
    transaction_check_max: int
    listener_timeout_s: float
    check_threads: int
    check_queue_size: int

    @property
    def checks_s(self) -> float:
        """From a half to its DISCARD, if nobody knows its end (R74)."""
        return self.transaction_timeout_s + (
            self.transaction_check_max * self.transaction_check_interval_s
        )


GROUP_KEYS = tuple(spec.name for spec in fields(CheckSettings))


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
        2000,
        "questions of one listener in a round (RocketMQ: 2000)",
        at_least=1,
        at_most=1_000_000,
    )
    check_set_size: int = setting(
        100_000,
        "questions in one call of a listener that answers for a set",
        at_least=1,
        at_most=10_000_000,
    )
    check_lease_s: float = setting(
        30.0, "another check service may take over after this silence", at_least=1.0
    )
    recheck_interval_s: float = setting(
        180.0, "time between two rechecks by the check service", at_least=1.0
    )
    file_reserved_time_h: float = setting(
        72.0, "age at which an ended message may be removed", at_least=1.0
    )
    max_message_size_bytes: int = setting(
        4 * 1024 * 1024, "largest body of one message", at_least=1, at_most=512 * 1024 * 1024
    )
    max_transaction_size_bytes: int = setting(
        64 * 1024 * 1024, "largest sum of bodies in one transaction", at_least=1
    )
    max_properties_size_bytes: int = setting(
        32767, "largest sum of keys, tags and properties", at_least=1, at_most=1_048_576
    )
    half_queues: int = setting(
        4, "partitions of the half and op logs; fixed at creation", at_least=1, at_most=4096
    )
    default_topic_queue_nums: int = setting(
        8, "queues of a topic that its first message makes", at_least=1, at_most=4096
    )
    auto_create_topic_enable: bool = setting(
        default=True, doc="a topic is made by its first message (RocketMQ autoCreateTopicEnable)"
    )
    topic_refresh_s: float = setting(
        10.0, "a producer follows a change of a topic's settings within this time", at_least=0.0
    )
    reject_transaction_message: bool = setting(
        default=False, doc="refuse new transactions; open transactions still end (R25)"
    )
    message_delay_level: str = setting(
        DEFAULT_LEVELS, "pauses that delay_level names, level 1 first (R97)"
    )
    timer_max_delay_s: float = setting(
        40 * 86_400.0,
        "longest delay_s, farthest deliver_timestamp (RocketMQ timerMaxDelaySec)",
        at_least=1.0,
        at_most=float(MAX_DELAY_S),
    )
    delay_trigger_interval_s: float = setting(
        0.1, "how often the delay service looks for due messages", at_least=0.001
    )
    delay_horizon_s: float = setting(
        3600.0, "messages due within this are kept in memory by the delay service", at_least=1.0
    )
    committer: str = setting("delta-rs", "who writes Delta's log; fixed at creation",
                             one_of=COMMITTERS)  # fmt: skip
    payload_engine: str = setting(
        "auto", "who copies bodies: arrow, spark, or auto by size", one_of=PAYLOAD_ENGINES
    )
    payload_engine_spark_bytes: int = setting(
        4 * 1024**3, "with auto, Spark copies rounds of this size or more", at_least=1
    )
    publish_batch_rows: int = setting(
        100_000, "messages of one round; a larger commit is one round", at_least=1
    )
    publish_batch_bytes: int = setting(
        256 * 1024 * 1024, "a round with more bytes than this is streamed", at_least=1
    )
    publish_drain_s: float = setting(
        10.0, "how long one micro-batch looks for new claims", at_least=0.0
    )
    publish_poll_interval_s: float = setting(
        0.005, "time between two looks at the op log in a micro-batch", at_least=0.001
    )
    publish_threads: int = setting(4, "topics written at the same time", at_least=1, at_most=256)
    park_retry_interval_s: float = setting(
        30.0, "time before a parked topic is tried again", at_least=0.01
    )
    group_commit_max_rows: int = setting(
        10_000, "rows that the threads of one process share in a commit", at_least=1
    )
    group_commit_linger_ms: float = setting(
        20.0, "asynchronous sends wait so long to share a commit; other sends do not wait",
        at_least=0.0, at_most=10_000.0,
    )  # fmt: skip
    back_pressure_for_async_send_num: int = setting(
        10_000, "asynchronous sends that wait for a commit; the next one is held up", at_least=1
    )
    local_transaction_threads: int = setting(
        8, "threads of a producer for asynchronous local transactions",
        at_least=1, at_most=1024,
    )  # fmt: skip
    commit_attempts: int = setting(
        20, "tries of one commit while other writers are faster", at_least=1, at_most=1000
    )
    maintenance_interval_s: float = setting(
        15.0, "time between two rounds of maintenance", at_least=0.01
    )
    compact_target_bytes: int = setting(
        64 * 1024 * 1024, "small files are merged up to this size", at_least=1024 * 1024
    )
    log_reserved_time_s: float = setting(
        300.0, "age at which a commit of half, op or settled may be cleaned, once all have read it",
        at_least=1.0,
    )  # fmt: skip
    topic_log_reserved_time_h: float = setting(
        24.0, "how long a stream over a topic can pause and still go on", at_least=0.01
    )
    orphan_reserved_time_h: float = setting(
        24.0, "age at which a file that no commit names is removed; longer than any sending takes",
        at_least=1.0,
    )  # fmt: skip
    checkpoint_interval: int = setting(
        25, "commits between two checkpoints of a table's log; fixed at creation", at_least=1
    )
    consumer_lease_s: float = setting(
        10.0, "another member of a consumer group takes over after this silence", at_least=0.3
    )
    listeners: Mapping[str, str | Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "doc": "listeners by producer group: `group: package.module:Class`, "
            "or `group: {class: txmq:DeltaListener, table: /lake/orders}`"
        },
    )
    groups: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"doc": "check settings by producer group: `group: {transaction_check_max: 3}`"},
    )
    max_reconsume_times: int = setting(
        16, "tries of a message in a consumer group before it is a dead letter (R108)",
        at_least=0, at_most=10_000,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check each key, then the pairs, and raise all faults together."""
        specs = {spec.name: spec for spec in fields(self)}
        faults = faults_of_listeners(self.listeners)
        faults += faults_of_groups(self.groups, specs, GROUP_KEYS)
        for name, spec in specs.items():
            if name not in _MAPPINGS:
                faults += faults_of_value(spec, getattr(self, name))
        faults += [] if faults else [*self._level_faults(), *self._pair_faults()]
        if faults:
            raise ConfigError(faults)
        for name in _MAPPINGS:
            by_stored_name = {stored_name(key): own for key, own in getattr(self, name).items()}
            object.__setattr__(self, name, _frozen(by_stored_name))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Settings from a mapping; keys left out keep their defaults."""
        if not isinstance(values, Mapping):
            raise ConfigError([f"settings must be a mapping, not {type(values).__name__}"])
        known = {spec.name for spec in fields(cls)}
        faults = [unknown_key(key, known) for key in values if key not in known]
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
    def from_env(
        cls,
        prefix: str = "TXMQ_",
        environ: Mapping[str, str] | None = None,
        *,
        base: Config | None = None,
    ) -> Config:
        """Settings from variables such as TXMQ_TRANSACTION_CHECK_MAX; values are read as YAML.

        Keys that no variable names are those of `base`, else defaults. A misspelt one is refused;
        what is far from every key (a password, a port of Kubernetes) is none of ours.
        """
        variables = os.environ if environ is None else environ
        known = {spec.name for spec in fields(cls)}
        values = {} if base is None else base.to_dict()
        for variable in sorted(variables):
            key = variable.removeprefix(prefix).lower()
            if variable.startswith(prefix) and (key in known or is_nearly(key, known)):
                values[key] = _loaded(variables[variable])
        return cls.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        return {spec.name: _plain(getattr(self, spec.name)) for spec in fields(self)}

    def __reduce__(self) -> tuple[object, ...]:
        """Settings may be sent to other processes; a mapping proxy alone could not."""
        return type(self).from_dict, (self.to_dict(),)

    def replace(self, **changes: Any) -> Config:
        """The same settings but for `changes`, checked again."""
        return Config.from_dict({**self.to_dict(), **changes})

    def of_group(self, producer_group: str) -> CheckSettings:
        """The check settings that hold for a producer group: its own ones, else the store's."""
        own = self.groups.get(producer_group, {})
        return CheckSettings(**{key: own.get(key, getattr(self, key)) for key in GROUP_KEYS})

    def check_settings(self) -> dict[str, CheckSettings]:
        """Those of each group that `groups` names, and under "" those of all the others."""
        return {name: self.of_group(name) for name in ("", *self.groups)}

    @property
    def delay_levels_s(self) -> tuple[int, ...]:
        """The pauses of `message_delay_level`."""
        return level_seconds(self.message_delay_level)

    def _level_faults(self) -> list[str]:
        try:
            level_seconds(self.message_delay_level)
        except ValueError as error:
            return [f"message_delay_level {error}"]
        return []

    def _pair_faults(self) -> list[str]:
        faults = self._check_faults(self.of_group(""))
        if self.max_transaction_size_bytes < self.max_message_size_bytes:
            faults.append(
                f"max_transaction_size_bytes ({self.max_transaction_size_bytes:,}) is below "
                f"max_message_size_bytes ({self.max_message_size_bytes:,})"
            )
        for group in self.groups:
            # What the group has from the store is said already.
            own = [one for one in self._check_faults(self.of_group(group)) if one not in faults]
            faults += [f"groups: {group}: {fault}" for fault in own]
        return faults

    def _check_faults(self, settings: CheckSettings) -> list[str]:
        reserved_s = self.file_reserved_time_h * 3600
        faults = []
        if settings.checks_s > reserved_s:
            faults.append(
                f"transaction_timeout_s and transaction_check_max x transaction_check_interval_s "
                f"are {settings.checks_s:,.0f} s, longer than file_reserved_time_h "
                f"({reserved_s:,.0f} s)"
            )
        if self.check_lease_s <= settings.listener_timeout_s:
            faults.append(
                f"check_lease_s ({self.check_lease_s:g}) must be above "
                f"listener_timeout_s ({settings.listener_timeout_s:g})"
            )
        return faults


_MAPPINGS = ("listeners", "groups")


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(own) for key, own in value.items()})
    return value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    return value


def _loaded(text: str) -> object:
    """A variable's value as YAML reads it; the checks then name the key of what it cannot read."""
    try:
        return yaml.safe_load(text)
    except _UNREADABLE:
        return text
