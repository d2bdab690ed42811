"""The settings: typed, frozen and checked; unknown keys are refused with the nearest name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from txmq.errors import ConfigError, shown
from txmq.message.delay_levels import DEFAULT_LEVELS, MAX_DELAY_S, level_seconds
from txmq.message.names import stored_name
from txmq.store.config_faults import (
    faults_of_claim_keys,
    faults_of_groups,
    faults_of_listeners,
    faults_of_value,
    is_nearly,
    refuses_unknown_keys,
    setting,
    unknown_key,
)

PAYLOAD_ENGINES = ("auto", "arrow", "spark")
# Keys that a store fixes at its creation; a running process cannot change them.
FIXED_KEYS = ("half_queues", "checkpoint_interval")
# Settings of version 0.1 that had one value; stores and files of that time name them.
RETIRED = {"committer": "delta-rs"}
# ValueError: a number or a date that Python cannot represent.
_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
_MAPPINGS = ("listeners", "claim_keys", "groups", "consumer_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """The check settings of one producer group; `Config.of_group` makes it."""

    transaction_timeout_s: float
    transaction_check_interval_s: float
    transaction_check_max: int
    listener_timeout_s: float
    check_threads: int
    check_queue_size: int
    producer_lease_s: float
    transaction_renewal_max_s: float

    @property
    def checks_s(self) -> float:
        """The time from a half to its DISCARD, if every check is answered UNKNOWN (R74)."""
        return self.transaction_timeout_s + (
            self.transaction_check_max * self.transaction_check_interval_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """The settings of one consumer group; `Config.of_consumer_group` makes it."""

    max_reconsume_times: int
    consume_timeout_s: float
    pull_batch_size: int
    consume_turn_s: float
    consume_message_orderly: bool
    suspend_current_queue_time_s: float
    invisible_duration_s: float
    redeliver_in_place_max: int
    consume_threads: int


RECONSUME_TIMES_MAX = 10_000
GROUP_KEYS = tuple(spec.name for spec in fields(CheckSettings))
CONSUMER_GROUP_KEYS = tuple(spec.name for spec in fields(ConsumeSettings))


@refuses_unknown_keys
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a store; RocketMQ's names in snake_case, with their unit.

    conf/txmq.yaml lists every setting with its default and its meaning. A Config is frozen; make
    another one with `replace`.

    Raises:
        ConfigError: a value has the wrong type, is out of bounds, or contradicts another value; the
            error names all faults at once.

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
    producer_lease_s: float = setting(
        30.0, "silence of a producer after which its open transactions are asked about",
        at_least=0.1, at_most=3600.0,
    )  # fmt: skip
    transaction_renewal_max_s: float = setting(
        86_400.0, "time for which a producer that lives renews an open transaction; 0: never",
        at_least=0.0,
    )  # fmt: skip
    check_trigger_interval_s: float = setting(
        2.0, "time between two searches of the check service for due transactions", at_least=0.0
    )
    deadline_join: str = setting(
        "auto",
        "the deadline join of a broker with Spark: auto, if searches are slow, or always",
        one_of=("auto", "always"),
    )
    listener_timeout_s: float = setting(
        10.0, "a question without an answer after this time counts as UNKNOWN", at_least=0.001
    )
    check_threads: int = setting(
        5,
        "questions to one listener at the same time (RocketMQ: 2 to 5)",
        at_least=1,
        at_most=1024,
    )
    check_queue_size: int = setting(
        2000,
        "questions to one listener in a round (RocketMQ: 2000)",
        at_least=1,
        at_most=1_000_000,
    )
    check_set_size: int = setting(
        100_000,
        "questions in one call of a listener that answers sets",
        at_least=1,
        at_most=10_000_000,
    )
    check_lease_s: float = setting(
        30.0, "silence of a check service after which another one may take over", at_least=1.0
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
        64 * 1024 * 1024, "largest sum of bodies and properties in one transaction", at_least=1
    )
    max_properties_size_bytes: int = setting(
        32767, "largest sum of keys, tags and properties of one message", at_least=1, at_most=2**20
    )
    half_queues: int = setting(
        4, "partitions of the half and op logs; fixed at creation", at_least=1, at_most=4096
    )
    default_topic_queue_nums: int = setting(
        8, "queues of a topic that is made by its first message", at_least=1, at_most=4096
    )
    auto_create_topic_enable: bool = setting(
        default=True, doc="the first message makes its topic (RocketMQ autoCreateTopicEnable)"
    )
    topic_refresh_s: float = setting(
        10.0, "time within which a producer follows a change of a topic's settings", at_least=0.0
    )
    reject_transaction_message: bool = setting(
        default=False, doc="refuse new transactions; open transactions still end (R25)"
    )
    message_delay_level: str = setting(
        DEFAULT_LEVELS, "delays that delay_level selects, level 1 first (R97)"
    )
    timer_max_delay_s: float = setting(
        40 * 86_400.0, "longest delay of a message (RocketMQ timerMaxDelaySec)",
        at_least=1.0, at_most=float(MAX_DELAY_S),
    )  # fmt: skip
    delay_trigger_interval_s: float = setting(
        0.1, "time between two searches of the delay service for due messages", at_least=0.001
    )
    delay_horizon_s: float = setting(
        3600.0, "the delay service keeps messages in memory that are due within this time",
        at_least=1.0,
    )  # fmt: skip
    payload_engine: str = setting(
        "auto", "engine that copies messages: arrow, spark, or auto by size and cores",
        one_of=PAYLOAD_ENGINES,
    )  # fmt: skip
    payload_engine_spark_bytes: int = setting(
        4 * 1024**3, "with auto, executors copy rounds of this size or more", at_least=1
    )
    publish_batch_rows: int = setting(
        100_000, "messages of one publish round; a larger commit is one round", at_least=1
    )
    publish_batch_bytes: int = setting(
        256 * 1024 * 1024, "bytes of bodies that a publisher holds at once while it copies them",
        at_least=1,
    )  # fmt: skip
    publish_drain_s: float = setting(
        30.0, "time that one micro-batch of the publisher waits for new claims", at_least=0.0
    )
    publish_poll_interval_s: float = setting(
        0.002, "time between two looks at the op log; after 30 s without a claim ten times as long",
        at_least=0.001,
    )  # fmt: skip
    remote_look_interval_s: float = setting(
        0.2, "least time between two looks at a log on an object store, which are paid for",
        at_least=0.001,
    )  # fmt: skip
    publish_threads: int = setting(
        4, "topics that are written at the same time", at_least=1, at_most=256
    )
    park_retry_interval_s: float = setting(
        30.0, "time before a parked topic is tried again", at_least=0.01
    )
    group_commit_max_rows: int = setting(
        10_000, "rows that the threads of one process share in a commit", at_least=1
    )
    group_commit_max_bytes: int = setting(
        64 * 1024 * 1024, "bytes that the threads of one process share in a commit", at_least=1
    )
    group_commit_linger_ms: float = setting(
        20.0, "time that asynchronous sends wait to share a commit; other sends do not wait",
        at_least=0.0, at_most=10_000.0,
    )  # fmt: skip
    back_pressure_for_async_send_num: int = setting(
        10_000, "asynchronous sends that may wait for a commit; the next send blocks", at_least=1
    )
    back_pressure_for_async_send_size_bytes: int = setting(
        100 * 2**20, "bytes of asynchronous sends without result; the next send blocks", at_least=1
    )
    local_transaction_threads: int = setting(
        8, "threads of a producer for asynchronous local transactions", at_least=1, at_most=1024
    )
    commit_attempts: int = setting(
        20, "attempts of one commit if other writers are faster", at_least=1, at_most=1000
    )
    maintenance_interval_s: float = setting(
        15.0, "time between two rounds of maintenance", at_least=0.01
    )
    compact_target_bytes: int = setting(
        64 * 1024 * 1024, "small files are merged up to this size", at_least=1024 * 1024
    )
    log_reserved_time_s: float = setting(
        300.0, "age at which a commit of half, op or settled may be removed once all have read it",
        at_least=1.0,
    )  # fmt: skip
    topic_log_reserved_time_h: float = setting(
        24.0, "time that a stream over a topic can pause and still continue", at_least=0.01
    )
    orphan_reserved_time_h: float = setting(
        24.0, "age at which a file without a commit is removed; must be longer than any send takes",
        at_least=1.0,
    )  # fmt: skip
    checkpoint_interval: int = setting(
        25, "commits between two checkpoints of a table's log; fixed at creation", at_least=1
    )
    consumer_lease_s: float = setting(
        10.0, "silence of a member of a consumer group after which other members take over",
        at_least=0.3,
    )  # fmt: skip
    consume_timeout_s: float = setting(
        900.0, "a handler that takes longer for one message has failed on it (RocketMQ: 15 min)",
        at_least=0.001,
    )  # fmt: skip
    consume_batch_bytes: int = setting(
        64 * 1024 * 1024, "size of the messages that one poll or push of a consumer holds",
        at_least=1,
    )  # fmt: skip
    pull_batch_size: int = setting(
        32, "messages of one queue that a handler is given before the next queue has its turn",
        at_least=1, at_most=10_000,
    )  # fmt: skip
    consume_turn_s: float = setting(
        1.0, "time that a handler is given messages of one queue, before the next has its turn",
        at_least=0.0,
    )  # fmt: skip
    consume_message_orderly: bool = setting(
        False,  # noqa: FBT003 - a default
        "whether a message that fails is tried again in its place, before the next of its queue",
    )
    suspend_current_queue_time_s: float = setting(
        1.0, "time that a queue rests before a message is tried again in its place",
        at_least=0.0,
    )  # fmt: skip
    invisible_duration_s: float = setting(
        60.0, "time after which a message that was received comes again, if it is not acknowledged",
        at_least=0.0, at_most=43_200.0,
    )  # fmt: skip
    consume_threads: int = setting(
        1, "threads that call the handler of a consumer of `start`, each with queues of its own",
        at_least=1, at_most=1_000,
    )  # fmt: skip
    redeliver_in_place_max: int = setting(
        2, "redeliveries of a message that is not acknowledged before it becomes a retry",
        at_least=0, at_most=RECONSUME_TIMES_MAX,
    )  # fmt: skip
    listeners: Mapping[str, str | Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "acts": True,
            "doc": "listeners by producer group: `group: package.module:Class`, "
            "or `group: {class: txmq:DeltaListener, table: /lake/orders}`; no store keeps them",
        },
    )
    claim_keys: Mapping[str, str | Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "acts": True,
            "doc": "keys that sign claims, by producer group: `group: NAME_OF_A_VARIABLE`, or "
            "`group: {variable: NAME_OF_A_VARIABLE, accept_unsigned: true}`; no store keeps them",
        },
    )
    groups: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"doc": "check settings by producer group: `group: {transaction_check_max: 3}`"},
    )
    consumer_groups: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "doc": "settings by consumer group: "
            "`group: {max_reconsume_times: 3, consume_timeout_s: 60}`"
        },
    )
    max_reconsume_times: int = setting(
        16, "attempts of a consumer group at a message before it is a dead letter (R108)",
        at_least=0, at_most=RECONSUME_TIMES_MAX,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check each key, then the pairs, and raise all faults together."""
        faults = faults_of_listeners(self.listeners) + faults_of_claim_keys(self.claim_keys)
        faults += faults_of_groups("groups", self.groups, SPECS, GROUP_KEYS)
        faults += faults_of_groups(
            "consumer_groups", self.consumer_groups, SPECS, CONSUMER_GROUP_KEYS
        )
        for name, spec in SPECS.items():
            if name not in _MAPPINGS:
                faults += faults_of_value(spec, getattr(self, name))
        faults += [] if faults else self._faults_between()
        if faults:
            raise ConfigError(faults)
        for name in _MAPPINGS:
            groups = getattr(self, name).items()
            by_stored_name = {stored_name(group): value for group, value in groups}
            object.__setattr__(self, name, _frozen(by_stored_name))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Make settings from a mapping; keys that are left out have their defaults.

        Args:
            values: as `to_dict` returns them.

        Raises:
            ConfigError: a key is unknown, or a value is not allowed; the error names all faults.
        """
        if not isinstance(values, Mapping):
            raise ConfigError([f"settings must be a mapping, not {type(values).__name__}"])
        values = {
            key: value for key, value in values.items() if (key, value) not in RETIRED.items()
        }
        faults = [unknown_key(key, SPECS) for key in values if key not in SPECS]
        arguments = {key: value for key, value in values.items() if key in SPECS}
        try:
            config = cls(**arguments)
        except ConfigError as error:
            raise ConfigError([*faults, *error.faults]) from None
        if faults:
            raise ConfigError(faults)
        return config

    @classmethod
    def from_yaml(cls, path: str | Path) -> Config:
        """Read settings from a YAML file such as conf/txmq.yaml.

        Args:
            path: a mapping of settings; an empty file gives the defaults.

        Raises:
            ConfigError: the file cannot be read, is no YAML, says a key twice, or holds a number
                that YAML reads as another one than people do; or as `from_dict`.
        """
        try:
            # Bytes: YAML knows the byte order marks of Windows by itself.
            values = _read_yaml(Path(path).read_bytes())
        except (OSError, *_UNREADABLE) as error:
            raise ConfigError([f"{path} cannot be read: {_why(error)}"]) from error
        return cls.from_dict({} if values is None else values)

    @classmethod
    def from_env(
        cls,
        prefix: str = "TXMQ_",
        environ: Mapping[str, str] | None = None,
        *,
        base: Config | None = None,
    ) -> Config:
        """Read settings from variables such as TXMQ_TRANSACTION_CHECK_MAX, whose values are YAML.

        A variable with a misspelt key is refused. A variable whose name resembles no key, such as a
        password or a port of Kubernetes, is ignored.

        Args:
            prefix: of the variables' names.
            environ: the variables; those of the process by default.
            base: the settings of keys without a variable; defaults without it.

        Raises:
            ConfigError: a key is misspelt, or a value is not allowed; the error names all faults.

        Example:
            >>> store = store.with_settings(Config.from_env(base=store.config))
        """
        variables = os.environ if environ is None else environ
        names = {spec.name for spec in fields(cls)}
        values = {} if base is None else base.to_dict()
        for variable in sorted(variables):
            key = variable.removeprefix(prefix).lower()
            if variable.startswith(prefix) and (key in names or is_nearly(key, names)):
                values[key] = _loaded(variable, variables[variable])
        return cls.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, for JSON or YAML."""
        return {spec.name: _plain(getattr(self, spec.name)) for spec in fields(self)}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings as a dict, because a mapping proxy cannot be pickled."""
        return type(self).from_dict, (self.to_dict(),)

    def replace(self, **changes: Any) -> Config:
        """Return the same settings with some changes, checked again. Raises: ConfigError."""
        return Config.from_dict({**self.to_dict(), **changes})

    def of_group(self, producer_group: str) -> CheckSettings:
        """Return the check settings of a producer group: those in `groups`, else the store's.

        Args:
            producer_group: the stored name.
        """
        overrides = self.groups.get(producer_group, {})
        return CheckSettings(**{key: overrides.get(key, getattr(self, key)) for key in GROUP_KEYS})

    def of_consumer_group(
        self, consumer_group: str, kept: Mapping[str, Any] | None = None
    ) -> ConsumeSettings:
        """Return the settings of a consumer group.

        Args:
            consumer_group: the stored name.
            kept: what the group itself keeps; it comes before `consumer_groups`, and that before
                what holds for the whole store.
        """
        own = {**self.consumer_groups.get(consumer_group, {}), **(kept or {})}
        return ConsumeSettings(
            **{key: own.get(key, getattr(self, key)) for key in CONSUMER_GROUP_KEYS}
        )

    def check_settings(self) -> dict[str, CheckSettings]:
        """Return the check settings of each group in `groups`; of all other groups under ""."""
        return {name: self.of_group(name) for name in ("", *self.groups)}

    @property
    def delay_levels_s(self) -> tuple[int, ...]:
        """The delays of `message_delay_level`, level 1 first."""
        return level_seconds(self.message_delay_level)

    def _faults_between(self) -> list[str]:
        """Find values that contradict each other; each of them alone is allowed."""
        faults = []
        try:
            level_seconds(self.message_delay_level)
        except ValueError as error:
            faults.append(f"message_delay_level {error}")
        if self.max_transaction_size_bytes < self.max_message_size_bytes:
            faults.append(
                f"max_transaction_size_bytes ({self.max_transaction_size_bytes:,}) is below "
                f"max_message_size_bytes ({self.max_message_size_bytes:,})"
            )
        reserved_s = self.file_reserved_time_h * 3600
        return faults + _faults_of_checks(self.check_settings(), reserved_s, self.check_lease_s)


def _faults_of_checks(
    groups: Mapping[str, CheckSettings], reserved_s: float, lease_s: float
) -> list[str]:
    """Find the contradictions of check settings by producer group; the store's are under ""."""
    of_store = _faults_of_group(groups[""], reserved_s, lease_s)
    faults = list(of_store)
    for name, settings in groups.items():
        # A fault that the group inherits from the store is in the list already.
        of_group = _faults_of_group(settings, reserved_s, lease_s)
        faults += [f"groups: {name}: {fault}" for fault in of_group if fault not in of_store]
    return faults


def _faults_of_group(settings: CheckSettings, reserved_s: float, lease_s: float) -> list[str]:
    faults = []
    if settings.checks_s > reserved_s:
        faults.append(
            f"transaction_timeout_s and transaction_check_max x transaction_check_interval_s "
            f"are {settings.checks_s:,.0f} s, longer than file_reserved_time_h "
            f"({reserved_s:,.0f} s)"
        )
    if lease_s <= settings.listener_timeout_s:
        faults.append(
            f"check_lease_s ({lease_s:g}) must be above "
            f"listener_timeout_s ({settings.listener_timeout_s:g})"
        )
    return faults


def _frozen(value: Any) -> Any:
    """Return the value with mappings that cannot be changed."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})
    return value


def _plain(value: object) -> object:
    """Return the value with mappings as dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _loaded(variable: str, text: str) -> object:
    """Read a variable as YAML. Return its text if it is none, so that the checks name its key.

    Raises: ConfigError for a number that YAML reads otherwise, and for a key that is there twice.
    """
    try:
        return _read_yaml(text)
    except _AmbiguousError as error:
        raise ConfigError([f"{variable}: {_why(error)}"]) from error
    except _UNREADABLE:
        return text


# --- YAML as people read it -----------------------------------------------------------------------

_BASE_8, _BASE_60 = re.compile(r"[-+]?0[0-7_]+"), re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+")


class _AmbiguousError(yaml.constructor.ConstructorError):
    """Valid YAML that says something else than people read."""


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML as PyYAML does, but refuses what it would take for something else in silence."""

    def construct_number(self, node: yaml.ScalarNode) -> object:
        """Return a number. Raises: _AmbiguousError for the bases 8 and 60."""
        text = node.value
        if _BASE_8.fullmatch(text):
            raise self._ambiguous(node, f"is octal in YAML; write {text.replace('0', '', 1)}")
        if _BASE_60.fullmatch(text.partition(".")[0]):
            raise self._ambiguous(node, "counts in sixties in YAML; write one number, or quotes")
        is_float = node.tag.endswith(":float")
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
        """Return a mapping. Raises: _AmbiguousError for a key that it has twice, or is no text."""
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in names:
                raise self._ambiguous(key, "is there twice; leave one of the two out")
            if key.tag.endswith((":bool", ":null", ":int", ":float", ":timestamp")):
                raise self._ambiguous(key, "is no text as a key; put it in quotes")
            names.add(key.value)
        return super().construct_mapping(node, deep)

    def _ambiguous(self, node: yaml.Node, problem: str) -> _AmbiguousError:
        return _AmbiguousError(None, None, f"{shown(node.value)} {problem}", node.start_mark)


for _kind in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _PlainLoader.construct_number)


def _read_yaml(content: str | bytes) -> Any:
    return yaml.load(content, _PlainLoader)  # noqa: S506 - a safe loader


def _why(error: Exception) -> str:
    """Say what is wrong and where: line and column, as editors count them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:
        return type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


SPECS = {spec.name: spec for spec in fields(Config)}
