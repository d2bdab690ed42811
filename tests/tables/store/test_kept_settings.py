"""A store cannot act: nothing that its own settings name is loaded, run or asked."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.kit.builders import table_versions
from tests.kit.stores import fresh_store
from txmq.check.recheck import RecheckJob, all_listeners
from txmq.errors import ConfigError, StoreFormatError, TxmqError
from txmq.ops.broker import Broker
from txmq.ops.cli.app import app
from txmq.store.config import Config
from txmq.store.store import Store, open_store
from txmq.store.stored_settings import ACTING_KEYS

GROUP = "orders"


def keep(store: Store, **settings: Any) -> None:
    """Write settings into the store as anybody does who may write its tables."""
    register = store.tables.register("config")
    seen = register.read()
    register.swap(seen, {**seen.value, **settings}, 1)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file that is there as soon as somebody obeys the store."""
    return tmp_path / "pwned"


@pytest.fixture
def store(tmp_path: Path, trace: Path) -> Store:
    made = fresh_store(tmp_path / "store", Config(check_threads=7))
    command = {"class": "subprocess:Popen", "args": ["touch", str(trace)]}
    keep(made, listeners={GROUP: command})
    return made


def test_a_class_that_the_store_names_is_never_made(store: Store, trace: Path) -> None:
    opened = Store.open(store.location)
    RecheckJob(opened).run_once()
    Broker(opened).run_once()

    assert run("recheck", store.location).exit_code == 0
    assert run("serve", store.location, "--no-spark", "--once").exit_code == 0
    assert not trace.exists()
    assert opened.config == Config(check_threads=7)


def test_opening_says_by_name_what_was_ignored_and_how_to_move_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Store.open(store.location)

    assert list(opened.ignored) == ["listeners"]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    for part in (GROUP, "subprocess:Popen", "--config", "TXMQ_LISTENERS", "txmq doctor"):
        assert part in record.getMessage()


def test_a_foreign_service_gets_no_secret_of_the_operator(tmp_path: Path) -> None:
    made = fresh_store(tmp_path / "store")
    theft = {"class": "txmq:HttpListener", "url": "https://evil.example", "header_variable": "KEY"}
    keep(made, listeners={GROUP: theft})

    assert all_listeners(Store.open(made.location).config, None) == {}


def test_listeners_of_an_operator_s_file_and_variable_still_answer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = "{orders: {class: 'txmq:DeltaListener', table: /lake/orders}}"
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"listeners: {listener}\n", encoding="utf-8")

    assert list(all_listeners(open_store(store.location, settings).config, None)) == [GROUP]
    monkeypatch.setenv("TXMQ_LISTENERS", listener)
    opened = open_store(store.location)
    assert list(all_listeners(opened.config, None)) == [GROUP]
    assert opened.config.check_threads == 7


def test_a_new_store_keeps_no_listeners_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(check_threads=2, listeners={GROUP: "shop:Orders"})

    made = Store.create(tmp_path / "store", config)

    assert made.config == config
    assert Store.open(made.location).config == config.replace(listeners={})
    assert "shop" not in json.dumps(made.tables.register("config").read().value)
    assert "keeps no listeners ('orders')" in caplog.text


def test_doctor_shows_what_was_ignored_and_writes_nothing(store: Store, trace: Path) -> None:
    before = table_versions(store)

    shown, values = run("doctor", store.location), run("doctor", store.location, "--json")

    assert (shown.exit_code, values.exit_code) == (1, 1)
    assert "subprocess:Popen" in shown.stdout
    assert "--config" in " ".join(shown.stdout.split())
    (finding,) = json.loads(values.stdout)["findings"]
    assert finding["where"] == "listeners: 'orders' ('subprocess:Popen')"
    assert "class: subprocess:Popen" in json.loads(values.stdout)["ignored_settings"]
    assert table_versions(store) == before
    assert not trace.exists()


def test_doctor_of_a_sound_store_finds_nothing(tmp_path: Path) -> None:
    made = fresh_store(tmp_path / "store")

    result = run("doctor", made.location)

    assert result.exit_code == 0
    assert "nothing found" in result.stdout


def test_doctor_finds_a_parked_topic_and_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    made = fresh_store(tmp_path / "store")
    register = made.tables.register("publisher")
    parked = {"paid": {"reason": "disk full", "from_version": 1, "since_ms": 1, "attempts": 1}}
    value = {"op_table_id": "", "low_water_version": 0, "op_commit_sha256": None, "parked": parked}
    register.swap(register.read(), value, 1)
    for commit in Path(made.location, "settled", "_delta_log").glob("*.json"):
        commit.write_text("no action", encoding="utf-8")

    findings = json.loads(run("doctor", made.location, "--json").stdout)["findings"]

    assert {finding["where"] for finding in findings} == {"settled", "topics/paid"}


@pytest.mark.parametrize(
    "value", ["text", 7, ["a:B"], {"g": 7}, {"g": None}, {7: "a:B"}, {"\x1b[2J": {"class": [1]}}]
)
def test_what_could_act_is_ignored_whatever_its_shape(tmp_path: Path, value: Any) -> None:
    made = fresh_store(tmp_path / "store")
    keep(made, listeners=value)

    result = run("doctor", made.location)

    assert Store.open(made.location).config == Config()
    assert result.exit_code == 1
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    "settings",
    [
        {"check_threads": "5"}, {"check_threads": [5]}, {"groups": 7}, {"groups": {"g": 7}},
        {"transaction_timeout_s": None}, {"message_delay_level": {}}, {"committer": "os:system"},
        {"check_threads": 10**400}, {"recheck_interval_s": 1e300}, {"delay_horizon_s": 1e17},
        {"no_setting": {"class": "subprocess:Popen"}},
    ],
)  # fmt: skip
def test_kept_setting_of_another_type_or_size_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    made = fresh_store(tmp_path / "store")
    keep(made, **settings)

    with pytest.raises(ConfigError, match=next(iter(settings))):
        Store.open(made.location)
    assert len(run("status", made.location).stderr.splitlines()) == 1


def test_settings_are_read_as_plain_yaml_alone(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("check_threads: !!python/object/apply:os.getpid []\n", encoding="utf-8")

    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_yaml(settings)
    with pytest.raises(ConfigError, match="check_threads"):
        Config.from_env(environ={"TXMQ_CHECK_THREADS": "!!python/name:os.getpid"})


def test_each_setting_is_a_number_a_choice_or_is_not_kept() -> None:
    texts = {
        spec.name
        for spec in fields(Config)
        if str(spec.type) not in ("int", "float", "bool") and not spec.metadata.get("one_of")
    }

    # Delays are parsed; groups hold numbers alone.
    assert texts - {"message_delay_level", "groups", "consumer_groups"} == set(ACTING_KEYS)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "null", "[" * 100_000, '{"a": 1' + "0" * 5_000 + "}"]
)
def test_state_value_that_is_no_object_is_an_error_of_txmq(tmp_path: Path, text: str) -> None:
    made = fresh_store(tmp_path / "store")
    write_raw(made, "config", [text])

    with pytest.raises(StoreFormatError, match="state/config"):
        Store.open(made.location)


def test_state_value_that_would_fill_the_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.store.register.VALUE_BYTES_MAX", 1_000_000)
    made = fresh_store(tmp_path / "store")
    write_raw(made, "config", ['{"a": "' + "x" * 2_000_000 + '"}'])
    rows = fresh_store(tmp_path / "rows")
    write_raw(rows, "config", ['{"a": "' + "x" * 10_000 + '"}'] * 1_000)

    for broken in (made, rows):
        with pytest.raises(StoreFormatError, match="the limit is 1,000,000"):
            Store.open(broken.location)


def test_state_value_above_the_limit_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.store.register.VALUE_BYTES_MAX", 1_000)
    register = fresh_store(tmp_path / "store").tables.register("publisher")
    seen = register.read()

    with pytest.raises(TxmqError, match="the limit is 1,000"):
        register.swap(seen, {"a": "x" * 2_000}, 1)
    assert register.read() == seen


def write_raw(store: Store, name: str, texts: list[str]) -> None:
    """State values as another program may write them."""
    import pyarrow as pa
    from deltalake import write_deltalake

    from txmq.ground.clock import timestamp
    from txmq.store.schemas import REGISTER

    rows = {
        "revision": list(range(1, len(texts) + 1)), "value": texts,
        "updated_timestamp": [timestamp(1)] * len(texts),
    }  # fmt: skip
    table = pa.table(rows, schema=REGISTER.columns)
    write_deltalake(f"{store.location}/state/{name}", table, mode="overwrite")
