# ruff: noqa: S301, PT017
from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping
from dataclasses import Field, FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError
from txmq.store.config import FIXED_KEYS, GROUP_KEYS, Config

CONF = Path(__file__).parents[3] / "conf"
KEYS = [spec.name for spec in fields(Config)]
NUMBERS = [spec for spec in fields(Config) if spec.type in ("int", "float")]


def faults_of(**values: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        Config.from_dict(values)
    return refused.value.faults


# --- defaults and files ----------------------------------------------------------------------


def test_defaults_are_those_of_rocketmq() -> None:
    config = Config()

    assert config.transaction_timeout_s == 6
    assert config.transaction_check_interval_s == 30
    assert config.transaction_check_max == 15
    assert config.file_reserved_time_h == 72
    assert config.max_message_size_bytes == 4_194_304


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_in_conf_is_accepted(path: Path) -> None:
    assert isinstance(Config.from_yaml(path), Config)


def test_template_holds_every_key_with_its_default() -> None:
    written = yaml.safe_load((CONF / "txmq.yaml").read_text(encoding="utf-8"))

    assert written == Config().to_dict()
    assert list(written) == KEYS


@pytest.mark.parametrize("spec", fields(Config), ids=lambda spec: spec.name)
def test_template_says_above_each_key_what_it_does(spec: Field[Any]) -> None:
    lines = (CONF / "txmq.yaml").read_text(encoding="utf-8").splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(f"{spec.name}:"))

    assert lines[place - 1] == f"# {spec.metadata['doc']}"


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n", encoding="utf-8")

    assert Config.from_yaml(path) == Config()


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"\xff\xfe\x00", b"transaction_timeout_s: 2026-13-45", b"a: " + b"9" * 5000,
     b"[" * 2000, b"- a\n- b", b"text", b"? {a: b}\n: c", b"!!python/object:os.system {}"],
)  # fmt: skip
def test_file_that_is_no_mapping_of_settings_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)

    with pytest.raises(ConfigError):
        Config.from_yaml(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file_reserved_time_h: 072", "line 1, column 23: '072' is octal in YAML; write 72"),
        ("file_reserved_time_h: 1:30", "'1:30' counts in sixties in YAML"),
        ("check_threads: 3\ncheck_threads: 4", "line 2, column 1: 'check_threads' is there twice"),
        ("groups:\n  no: {transaction_check_max: 3}", "'no' is no text as a key"),
        ("groups: {a: {transaction_check_max: 3}, a: {}}", "'a' is there twice"),
    ],
)
def test_what_yaml_reads_otherwise_than_people_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "strange.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=re.escape(told)):
        Config.from_yaml(path)


def test_a_variable_with_a_leading_zero_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"TXMQ_FILE_RESERVED_TIME_H: .*'072' is octal"):
        Config.from_env(environ={"TXMQ_FILE_RESERVED_TIME_H": "072"})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_of_a_windows_editor_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "windows.yaml"
    path.write_text("check_threads: 7\r\n", encoding=encoding)

    assert Config.from_yaml(path).check_threads == 7


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read: FileNotFoundError"):
        Config.from_yaml(tmp_path / "absent.yaml")


def test_environment_overrides_defaults() -> None:
    environ = {
        "TXMQ_TRANSACTION_CHECK_MAX": "3",
        "TXMQ_REJECT_TRANSACTION_MESSAGE": "true",
        "TXMQ_LISTENERS": "{orders: shop.listeners:Orders}",
        "UNRELATED": "1",
    }

    config = Config.from_env(environ=environ)

    assert config.transaction_check_max == 3
    assert config.reject_transaction_message is True
    assert config.listeners == {"orders": "shop.listeners:Orders"}


@pytest.mark.parametrize("value", ["", "[", "three", "2026-13-45", "9" * 5000, "yes"])
def test_variable_that_cannot_be_read_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match="transaction_check_max"):
        Config.from_env(environ={"TXMQ_TRANSACTION_CHECK_MAX": value})


def test_variables_change_a_base_and_leave_the_rest() -> None:
    base = Config(check_threads=7, groups={"billing": {"transaction_check_max": 3}})

    config = Config.from_env(environ={"TXMQ_LISTENER_TIMEOUT_S": "3"}, base=base)

    assert config == base.replace(listener_timeout_s=3.0)


def test_misspelt_variables_are_refused_together_with_wrong_values() -> None:
    environ = {"TXMQ_CHECK_THREDS": "2", "TXMQ_LISTENER_TIMEOUT": "3", "TXMQ_HALF_QUEUES": "0"}

    with pytest.raises(ConfigError) as caught:
        Config.from_env(environ=environ)

    assert len(caught.value.faults) == 3
    for meant in ("check_threads?", "listener_timeout_s?", "half_queues"):
        assert meant in str(caught.value)


@pytest.mark.parametrize(
    "variable", ["LOCATION", "FAILPOINTS", "ORDERS_DB", "SERVICE_HOST", "PORT", "PASSWORD", ""]
)
def test_variable_that_is_no_setting_is_somebody_elses(variable: str) -> None:
    assert Config.from_env(environ={f"TXMQ_{variable}": "secret"}) == Config()


def test_own_prefix_of_the_environment() -> None:
    environ = {"SHOP_CHECK_THREADS": "2", "TXMQ_CHECK_THREADS": "3"}

    assert Config.from_env("SHOP_", environ).check_threads == 2


# --- faults ----------------------------------------------------------------------------------


def test_all_faults_are_listed_at_once() -> None:
    faults = faults_of(
        transaction_check_max=0,
        transaction_timeout_s="6",
        reject_transaction_message=1,
        payload_engine="jvm",
        transaction_chek_interval_s=3,
        listeners={"a/b": "x"},
    )

    text = "\n".join(faults)
    for key in ("check_max", "timeout_s", "reject_", "engine", "chek_interval", "listeners"):
        assert key in text
    assert len(faults) == 7


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("transaction_chek_max", "transaction_check_max"),
        ("transactionCheckMax", "transaction_check_max"),
        ("halfqueues", "half_queues"),
        ("listener", "listeners"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_name(typo: str, meant: str) -> None:
    assert faults_of(**{typo: 1}) == (f"{typo!r} is not a setting; did you mean {meant}?",)


def test_key_like_no_other_is_refused_without_a_guess() -> None:
    assert faults_of(zzz=1) == ("'zzz' is not a setting",)


@pytest.mark.parametrize("key", [1, None, ("a",), 2.5, True])
def test_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(ConfigError, match="is not a setting"):
        Config.from_dict({key: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "value",
    [True, False, "3", None, math.nan, math.inf, -math.inf, [1], -1, 1j, "yes", b"3", -(10**400)],
    ids=repr,
)
def test_number_is_never_anything_else(spec: Field[Any], value: object) -> None:
    faults = faults_of(**{spec.name: value})

    assert len(faults) == 1
    assert faults[0].startswith(f"{spec.name} must be ")


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.name)
def test_number_of_any_size_is_accepted_or_refused_by_name(spec: Field[Any]) -> None:
    try:
        Config.from_dict({spec.name: 10**400})
    except ConfigError as error:
        assert any(spec.name in fault for fault in error.faults)


@pytest.mark.parametrize("key", [spec.name for spec in NUMBERS if spec.type == "int"])
def test_count_with_a_fraction_is_refused(key: str) -> None:
    assert faults_of(**{key: 1.0}) == (f"{key} must be a whole number, not 1.0",)


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.name)
def test_lowest_number_is_allowed_and_the_next_below_is_not(spec: Field[Any]) -> None:
    lowest = spec.metadata["at_least"]
    step = 1 if spec.type == "int" else 0.0001

    faults = faults_of(**{spec.name: lowest - step})

    assert faults[0].startswith(f"{spec.name} must be at least")
    pairs = (
        {"max_message_size_bytes": 1, "max_transaction_size_bytes": 1}
        if "size" in spec.name
        else {}
    )
    room = {"check_lease_s": 1.0, "listener_timeout_s": 0.5, "transaction_check_max": 1}
    config = Config.from_dict({**room, **pairs, spec.name: lowest})
    assert getattr(config, spec.name) == lowest


def test_checks_that_outlive_the_retention_are_refused() -> None:
    faults = faults_of(
        transaction_check_max=10, transaction_check_interval_s=3600, file_reserved_time_h=9
    )

    assert "longer than file_reserved_time_h" in faults[0]


def test_immunity_that_outlives_the_retention_is_refused() -> None:
    faults = faults_of(transaction_timeout_s=73 * 3600)

    assert "file_reserved_time_h" in faults[0]


def test_message_larger_than_its_transaction_is_refused() -> None:
    assert "max_transaction_size_bytes" in faults_of(max_transaction_size_bytes=1)[0]


def test_lease_must_outlast_a_question() -> None:
    assert "check_lease_s" in faults_of(listener_timeout_s=30, check_lease_s=30)[0]


@pytest.mark.parametrize(
    "listeners",
    [
        [], "a:b", None, {"g": "module"}, {"g": "module:"}, {"g": ":Class"}, {"g": 1},
        {"g": "os; rm:x"}, {"a b": "m:C"}, {1: "m:C"}, {"g": "m:C()"}, {"g": "m:C\n"},
    ],
    ids=repr,
)  # fmt: skip
def test_listener_that_cannot_be_a_class_is_refused(listeners: object) -> None:
    assert all(fault.startswith("listeners") for fault in faults_of(listeners=listeners))


def test_long_value_is_cut_in_its_fault() -> None:
    assert len(faults_of(payload_engine="x" * 10_000)[0]) <= 200


# --- groups ----------------------------------------------------------------------------------


def test_group_without_settings_of_its_own_has_those_of_the_store() -> None:
    config = Config(transaction_check_max=3, groups={"billing": {"transaction_check_max": 7}})

    assert config.of_group("orders").transaction_check_max == 3
    assert config.of_group("billing").transaction_check_max == 7


@pytest.mark.parametrize("key", GROUP_KEYS)
def test_each_check_setting_can_differ_by_group(key: str) -> None:
    other = getattr(Config(), key) + 1
    config = Config(groups={"billing": {key: other}})

    assert getattr(config.of_group("billing"), key) == other
    assert config.of_group("billing") != config.of_group("orders") == Config().of_group("billing")


def test_settings_of_all_groups_are_listed_with_those_of_the_others() -> None:
    config = Config(groups={"billing": {"check_threads": 1}})

    found = config.check_settings()

    assert {name: one.check_threads for name, one in found.items()} == {"": 5, "billing": 1}


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([], "groups must map"),
        (None, "groups must map"),
        ({"a/b": {}}, "groups: producer_group"),
        ({1: {}}, "groups: producer_group"),
        ({"billing": None}, "must map settings to values"),
        ({"billing": ["check_threads"]}, "must map settings to values"),
        ({"billing": {"check_thread": 1}}, "did you mean check_threads?"),
        ({"billing": {"zzz": 1}}, "'zzz' is not a setting"),
        ({"billing": {None: 1}}, "is not a setting"),
        ({"billing": {"check_lease_s": 90}}, "check_lease_s holds for the whole store"),
        ({"billing": {"check_threads": 0}}, "check_threads must be at least 1"),
        ({"billing": {"check_threads": 1.0}}, "check_threads must be a whole number"),
        ({"billing": {"listener_timeout_s": "9"}}, "listener_timeout_s must be a number"),
        ({"billing": {"transaction_timeout_s": math.inf}}, "transaction_timeout_s must be finite"),
        ({"billing": {"listener_timeout_s": 30}}, "groups: billing: check_lease_s (30) must be"),
        ({"billing": {"transaction_timeout_s": 1e6}}, "groups: billing: transaction_timeout_s and"),
    ],
)
def test_setting_of_a_group_that_cannot_be_is_refused(groups: object, fault: str) -> None:
    faults = faults_of(groups=groups)

    assert len(faults) == 1
    assert fault in faults[0]


def test_faults_of_all_groups_are_listed_at_once() -> None:
    faults = faults_of(
        check_threads=0,
        groups={"a": {"check_threads": 0, "check_thread": 1}, "b": {"listener_timeout_s": 0}},
    )

    assert len(faults) == 4


def test_consumer_groups_have_settings_of_their_own() -> None:
    own = {"billing": {"max_reconsume_times": 3}, "shop%audit": {"consume_timeout_s": 60.0}}
    config = Config(max_reconsume_times=5, consumer_groups=own)

    assert config.of_consumer_group("billing").max_reconsume_times == 3
    assert config.of_consumer_group("billing").consume_timeout_s == config.consume_timeout_s
    assert config.of_consumer_group("shop.audit").consume_timeout_s == 60.0
    assert config.of_consumer_group("other").max_reconsume_times == 5
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([], "consumer_groups must map a consumer group"),
        ({"a/b": {}}, "consumer_groups: consumer_group"),
        ({"billing": 3}, "consumer_groups: 'billing' must map settings"),
        ({"billing": {"max_reconsume_time": 3}}, "did you mean max_reconsume_times?"),
        ({"billing": {"max_reconsume_times": -1}}, "max_reconsume_times must be at least 0"),
        ({"billing": {"check_threads": 3}}, "check_threads holds for the whole store"),
        ({"a.b": {}, "a%b": {}}, "is named twice"),
    ],
)
def test_setting_of_a_consumer_group_that_cannot_be_is_refused(groups: object, fault: str) -> None:
    assert fault in "\n".join(faults_of(consumer_groups=groups))


def test_fault_of_the_store_is_not_repeated_for_its_groups() -> None:
    assert len(faults_of(listener_timeout_s=30, groups={"billing": {"check_threads": 1}})) == 1


def test_settings_of_groups_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text("groups:\n  billing:\n    transaction_check_max: 3\n", encoding="utf-8")
    environ = {"TXMQ_GROUPS": "{billing: {transaction_check_max: 3}}"}

    assert Config.from_yaml(path) == Config.from_env(environ=environ)
    assert Config.from_yaml(path).of_group("billing").transaction_check_max == 3


def test_settings_of_groups_are_frozen_and_survive_the_way_through_plain_values() -> None:
    own = {"check_threads": 1}
    config = Config(groups={"billing": own})
    own["check_threads"] = 2

    assert config.of_group("billing").check_threads == 1
    with pytest.raises(TypeError):
        config.groups["billing"]["check_threads"] = 3  # type: ignore[index]
    assert Config.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


# --- as a value -------------------------------------------------------------------------------


def test_settings_are_frozen() -> None:
    config = Config()

    with pytest.raises(FrozenInstanceError):
        config.check_threads = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.listeners["g"] = "m:C"  # type: ignore[index]


def test_settings_do_not_follow_a_mapping_that_changes_later() -> None:
    listeners = {"orders": "shop:Orders"}
    config = Config(listeners=listeners)

    listeners["more"] = "shop:More"

    assert config.listeners == {"orders": "shop:Orders"}


def test_settings_survive_the_way_through_plain_values() -> None:
    config = Config(check_threads=2, listeners={"orders": "shop:Orders"})

    assert Config.from_dict(config.to_dict()) == config
    assert Config.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


def test_settings_can_be_sent_to_another_process() -> None:
    config = Config(check_threads=2, listeners={"orders": "shop:Orders"})

    assert pickle.loads(pickle.dumps(config)) == config


def test_replace_checks_again() -> None:
    assert Config().replace(check_threads=2).check_threads == 2
    with pytest.raises(ConfigError):
        Config().replace(check_threads=0)


def test_fixed_keys_are_settings() -> None:
    assert set(FIXED_KEYS) <= set(KEYS)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=3)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9), VALUES, max_size=4))
def test_any_mapping_is_settings_or_a_config_error(values: Mapping[str, object]) -> None:
    try:
        config = Config.from_dict(values)
    except ConfigError as error:
        assert error.faults
    else:
        assert {key: config.to_dict()[key] for key in values} == values


@given(st.binary() | st.text().map(lambda text: text.encode(errors="ignore")))
def test_any_file_is_settings_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)

    try:
        Config.from_yaml(path)
    except ConfigError as error:
        assert error.faults


# --- settings of version 0.1 -----------------------------------------------------------------


def test_setting_of_version_0_1_that_had_one_value_is_passed_over() -> None:
    assert Config.from_dict({"committer": "delta-rs"}) == Config()


def test_setting_of_version_0_1_with_another_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="committer"):
        Config.from_dict({"committer": "spark"})
