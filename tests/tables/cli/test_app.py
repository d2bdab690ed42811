"""The command line: what it prints, its exit codes, and that errors are one clean line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from rich.console import Console
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner, Result

from tests.kit.builders import table_versions
from tests.kit.stores import HandMadeStore, halves, transaction_id
from txmq import __version__
from txmq.errors import StoreNotFoundError
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.cli.app import app
from txmq.ops.cli.shared import PANELS
from txmq.ops.metrics.formats import OpenTelemetryMetrics
from txmq.ops.metrics.server import MetricsEndpoint
from txmq.ops.tracing import OpenTelemetryHook
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store
from txmq.testing import ManualClock


@pytest.fixture
def made(clean: HandMadeStore) -> HandMadeStore:
    return clean


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None, **environment})


def assert_one_line(result: Result, text: str) -> None:
    assert result.exit_code == 2
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output


# --- the command itself --------------------------------------------------------------------------


def test_version_is_shown() -> None:
    result = run("--version")

    assert result.exit_code == 0
    assert result.stdout == f"txmq {__version__}\n"


def test_each_command_has_its_place_in_the_help() -> None:
    help_text = run("--help").stdout
    commands = get_command(app)
    names = commands.list_commands(Context(commands))  # type: ignore[attr-defined]

    assert sorted(name for names in PANELS.values() for name in names) == sorted(names)
    for panel in PANELS:
        assert panel in help_text
    assert "no-debug" not in help_text


def test_shell_completes_commands() -> None:
    asked = {"_TXMQ_COMPLETE": "complete_bash", "COMP_WORDS": "txmq stat", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "txmq"]

    said = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )

    assert said.stdout.split() == ["status"]


# --- init -----------------------------------------------------------------------------------------


def test_init_makes_a_store(tmp_path: Path) -> None:
    location = str(tmp_path / "store")

    result = run("init", location)

    assert result.exit_code == 0
    assert f"txmq serve {location}" in result.stdout
    assert Store.open(location).topics() == []


def test_init_takes_settings_from_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "txmq.yaml"
    settings.write_text("transaction_check_max: 3\n", encoding="utf-8")

    run("init", str(tmp_path / "store"), "--config", str(settings))

    assert Store.open(str(tmp_path / "store")).config.transaction_check_max == 3


def test_init_again_is_refused_in_one_line(store: Store) -> None:
    assert_one_line(run("init", store.location), "holds a store already; open it")


def test_a_misspelt_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    settings = tmp_path / "txmq.yaml"
    settings.write_text("transaction_check_maxx: 3\n", encoding="utf-8")

    result = run("init", str(tmp_path / "store"), "--config", str(settings))

    assert_one_line(result, "did you mean transaction_check_max?")


def test_a_misspelt_variable_is_refused_by_every_command(store: Store) -> None:
    for command in ("status", "open", "groups"):
        result = run(command, store.location, TXMQ_TRANSACTION_CHECK_MAXX="3")

        assert_one_line(result, "did you mean transaction_check_max?")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "verify", "serve"])
def test_a_place_without_a_store_is_one_line(tmp_path: Path, command: str) -> None:
    assert_one_line(run(command, str(tmp_path / "nothing")), "txmq init")


def test_debug_shows_the_error_itself(tmp_path: Path) -> None:
    result = run("--debug", "status", str(tmp_path / "nothing"))

    assert isinstance(result.exception, StoreNotFoundError)


def test_without_a_location_the_usage_is_shown() -> None:
    result = run("status")

    assert result.exit_code == 2
    assert "location" in result.stderr.lower()


# --- status ---------------------------------------------------------------------------------------


def test_status_shows_numbers(made: HandMadeStore) -> None:
    result = run("status", made.location)

    assert result.exit_code == 0
    assert "committed" in result.stdout
    assert "orders" in result.stdout


def test_status_as_json(made: HandMadeStore) -> None:
    values = json.loads(run("status", made.location, "--json").stdout)

    assert values["open"] == 2
    assert values["messages"] == {"orders": 4, "stock": 1}


def test_the_location_may_come_from_the_environment(made: HandMadeStore) -> None:
    assert run("status", TXMQ_LOCATION=made.location).exit_code == 0


def test_parked_topics_are_in_sight(made: HandMadeStore) -> None:
    made.publisher_state(2, {"stock": 3})

    result = run("status", made.location)

    assert "topic stock is parked from op version 3" in " ".join(result.stdout.split())
    assert "1 versions behind" in result.stdout


def test_watch_looks_until_it_is_interrupted(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("txmq.ops.cli.status.sleep", pause)

    result = run("status", made.location, "--watch", "--json", "--interval-s", "0.5")

    assert result.exit_code == 0
    assert looks == [0.5, 0.5]
    assert [json.loads(line)["open"] for line in result.stdout.splitlines()] == [2, 2]


def interrupted_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Press Ctrl-C in the pause after so many looks; return the pauses."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == looks:
            raise KeyboardInterrupt

    monkeypatch.setattr("txmq.ops.cli.status.sleep", pause)
    return pauses


def test_watch_in_a_pipe_prints_one_report_after_the_other(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = interrupted_after(3, monkeypatch)
    result = run("status", made.location, "--watch", "--interval-s", "7")

    assert (result.exit_code, pauses) == (0, [7.0] * 3)
    assert result.stdout.count("visible messages") == 3
    assert "\x1b" not in result.stdout


def test_watch_on_a_terminal_writes_each_report_over_the_one_before(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, height=60)
    monkeypatch.setattr("txmq.ops.cli.status.list_console", lambda: terminal)
    interrupted_after(3, monkeypatch)

    assert run("status", made.location, "--watch").exit_code == 0
    lines = screen.getvalue()
    report = lines[: lines.index("\x1b[1A")].count("\n")
    # Three reports and the last one again at the end; the screen is never cleared.
    assert lines.count("\x1b[1A") == 3 * report
    assert "\x1b[2J" not in lines


# --- show -----------------------------------------------------------------------------------------


def test_show_tells_one_life(made: HandMadeStore) -> None:
    result = run("show", made.location, transaction_id(7), COLUMNS="250")

    assert result.exit_code == 0
    assert f"{transaction_id(7)}: COMMITTED" in result.stdout
    assert "dead letter" in result.stdout
    assert "body-7" not in result.stdout


@pytest.mark.parametrize("command", ["show", "message"])
@pytest.mark.parametrize("columns", [None, "40"])
def test_no_id_is_cut(made: HandMadeStore, command: str, columns: str | None) -> None:
    option = ["--transaction"] if command == "message" else []
    arguments = [command, made.location, *option, transaction_id(7)]
    result = CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None, "COLUMNS": columns})

    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout
    assert f"{transaction_id(7)}:0" in result.stdout


def test_narrow_terminal_folds_what_is_long(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    terminal = Console(file=screen, force_terminal=True, width=60)
    monkeypatch.setattr("txmq.ops.cli.shared.list_console", lambda: terminal)
    run("show", made.location, transaction_id(7))

    shown = "".join(re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).split())
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert transaction_id(7) in shown


def test_show_needs_the_id_alone_where_the_environment_has_the_store(made: HandMadeStore) -> None:
    result = run("show", transaction_id(7), "--json", TXMQ_LOCATION=made.location)

    assert json.loads(result.stdout)["state"] == "COMMITTED"


def test_show_without_an_id_says_so(made: HandMadeStore) -> None:
    result = run("show", made.location)

    assert result.exit_code == 2
    assert "TRANSACTION_ID" in result.stderr


def test_show_of_an_unknown_id_is_one_line(made: HandMadeStore) -> None:
    assert_one_line(run("show", made.location, transaction_id(500)), "has no half message")


# --- verify ---------------------------------------------------------------------------------------


def test_verify_of_a_clean_store(made: HandMadeStore) -> None:
    result = run("verify", made.location)

    assert result.exit_code == 0
    assert result.stdout.strip().splitlines()[-1] == "0 violations"


def test_verify_of_a_broken_store(made: HandMadeStore) -> None:
    made.publish("orders", *halves(2, "orders"), op_version=3)

    result = run("verify", made.location, COLUMNS="200")

    assert result.exit_code == 1
    assert "if a broker or a producer runs, look again" in " ".join(result.stdout.split())
    assert result.stdout.strip().splitlines()[-1] == "2 violations"
    assert f"orders/0/4 {transaction_id(2)}:0" in result.stdout


def test_verify_as_json(made: HandMadeStore) -> None:
    made.publish("orders", *halves(2, "orders"), op_version=3)

    result = run("verify", made.location, "--json", "--running")

    assert result.exit_code == 1
    values = json.loads(result.stdout)
    assert values["violation_count"] == 2
    assert values["drained"] is False


# --- serve and demo -------------------------------------------------------------------------------


class FakeBroker:
    """Stands in for the broker, which needs Spark."""

    made: list[Any]

    def __init__(self, store: Store, *, spark: object, metrics: object, hooks: object) -> None:
        self.store, self.spark, self.metrics, self.hooks = store, spark, metrics, hooks
        FakeBroker.made.append(self)

    def start(self) -> str:
        return "handle"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    module, session = ModuleType("txmq.ops.broker"), ModuleType("txmq.spark.session")
    FakeBroker.made = []
    module.Broker = FakeBroker  # type: ignore[attr-defined]
    module.run_until_signal = lambda start: started.append(start())  # type: ignore[attr-defined]
    session.local_session = lambda name: f"session {name}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "txmq.ops.broker", module)
    monkeypatch.setitem(sys.modules, "txmq.spark.session", session)
    return started


def test_serve_runs_until_a_signal(store: Store, broker: list[Any]) -> None:
    result = run("serve", store.location)

    assert result.exit_code == 0
    assert broker == ["handle"]
    assert FakeBroker.made[0].store.location == store.location


def test_serve_without_spark_starts_none(store: Store, broker: list[Any]) -> None:
    run("serve", store.location)
    run("serve", store.location, "--no-spark")

    assert broker == ["handle", "handle"]
    assert [made.spark for made in FakeBroker.made] == ["session txmq-broker", None]
    assert [made.metrics for made in FakeBroker.made] == [None, None]


def test_serve_where_spark_is_not_installed_takes_threads_unless_spark_is_asked_for(
    store: Store, broker: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.ops.cli.serve.find_spec", lambda _name: None)
    said = run("serve", store.location)
    run("serve", store.location, "--spark")

    assert "without Spark" in said.output
    assert broker == ["handle", "handle"]
    assert [made.spark for made in FakeBroker.made] == [None, "session txmq-broker"]


def test_serve_gives_its_broker_to_opentelemetry(
    store: Store, broker: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", TracerProvider)
    result = run("serve", store.location, "--opentelemetry", "--metrics", "127.0.0.1:0")

    assert result.exit_code == 0
    (made,) = FakeBroker.made
    assert [type(hook) for hook in made.hooks] == [OpenTelemetryHook]
    assert [type(shown) for shown in made.metrics] == [OpenTelemetryMetrics, MetricsEndpoint]
    assert broker == ["handle"]


def test_serve_says_where_opentelemetry_has_no_sdk(store: Store) -> None:
    result = run("serve", store.location, "--opentelemetry")

    assert_one_line(result, "opentelemetry-instrument txmq serve")


@pytest.mark.parametrize("kind", ["tracer", "meter"])
def test_serve_says_that_a_provider_of_opentelemetry_cannot_be_loaded(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def missing() -> None:
        raise StopIteration

    module = {"tracer": "trace", "meter": "metrics"}[kind]
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", TracerProvider)
    monkeypatch.setattr(f"opentelemetry.{module}.get_{kind}_provider", missing)
    result = run("serve", store.location, "--opentelemetry")

    assert_one_line(result, f"OTEL_PYTHON_{kind.upper()}_PROVIDER")
    assert "StopIteration" in result.output


def committed(store: Store, count: int) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        for _ in range(count):
            producer.send(Message("order-paid", b"secret body"))


def test_serve_once_says_what_it_did_and_ends(store: Store) -> None:
    committed(store, 3)

    shown = run("serve", store.location, "--no-spark", "--once")
    told = json.loads(run("serve", store.location, "--no-spark", "--once", "--json").stdout)

    assert re.search(r"published +3", shown.stdout)
    assert "BrokerResult" not in shown.output
    assert (told["published"], told["open_transactions"]) == (0, 0)


def test_serve_once_fails_where_a_topic_is_parked(store: Store) -> None:
    committed(store, 1)
    # The place of the topic's folder.
    Path(store.location, "topics").mkdir(exist_ok=True)
    Path(store.location, "topics", "order-paid").write_text("no table")

    shown = run("serve", store.location, "--no-spark", "--once", "--json")

    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["published"] == 0
    assert "parked; `txmq topics` names them" in shown.stderr


def serving(store: Store, *options: str, until: str) -> list[str]:
    """Return the lines of a broker in a process of its own, until one of them says `until`."""
    command = [sys.executable, "-m", "txmq", *options, "serve", store.location, "--no-spark"]
    lines: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if until in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    return lines


def test_serve_says_what_it_serves_with_which_listeners_and_when_it_is_ready(store: Store) -> None:
    text = "".join(serving(store, until="ready after"))

    assert f"serving {store.location}; no listener" in text
    services = "maintenance, heartbeat, publisher, check service, delay service"
    assert re.search(rf"ready after \d+\.\d s: {services}", text)


def test_log_of_serve_is_json_where_it_is_asked_for(store: Store) -> None:
    lines = serving(store, "--log-format", "json", until="ready after")

    records = [json.loads(line) for line in lines]
    assert {record["level"] for record in records} == {"INFO"}
    assert any(record["message"].startswith("serving ") for record in records)


def test_level_of_the_log_is_as_asked_for(store: Store) -> None:
    lines = serving(store, "--log-level", "debug", until="ready after")

    assert any(" DEBUG " in line or " INFO " in line for line in lines)
    assert run("--log-level", "loud", "status", store.location).exit_code == 2


def test_serve_takes_settings_from_a_file(store: Store, broker: list[Any], tmp_path: Path) -> None:
    settings = tmp_path / "txmq.yaml"
    settings.write_text("transaction_check_max: 3\n", encoding="utf-8")

    run("serve", store.location, "--config", str(settings))

    assert broker
    assert FakeBroker.made[0].store.config.transaction_check_max == 3


def test_serve_takes_settings_from_variables(store: Store, broker: list[Any]) -> None:
    run("serve", store.location, TXMQ_TRANSACTION_CHECK_MAX="3")

    assert broker
    assert FakeBroker.made[0].store.config.transaction_check_max == 3


def test_demo_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    module = ModuleType("txmq.ops.demo.run")

    def main(location: str | None, **options: Any) -> int:
        seen.update(location=location, **options)
        return 1

    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "txmq.ops.demo.run", module)

    result = run("demo", "--flights", "50", "--lose-checkpoints")

    assert result.exit_code == 1
    assert seen["flights"] == 50
    assert seen["lose_checkpoints"] is True
    assert seen["location"] is None


def test_module_is_the_command(store: Store) -> None:
    # In a process of its own: runpy cannot run a module that pytest has loaded.
    command = [sys.executable, "-m", "txmq", "status", store.location, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert json.loads(ran.stdout)["location"] == store.location


def test_no_command_but_serve_and_demo_loads_spark() -> None:
    program = "import sys, txmq.ops.cli.app; sys.exit('pyspark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- recheck --------------------------------------------------------------------------------------


class SaysCommit:
    """Answers each check with COMMIT."""

    def execute_local_transaction(self, message: object, argument: object) -> object:  # noqa: ARG002
        raise AssertionError

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.COMMIT


class SaysUnknown(SaysCommit):
    """Answers each check with UNKNOWN."""

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN


@pytest.fixture
def unanswered(tmp_path: Path) -> Store:
    """Make a store with one transaction that is long due."""
    store = Store.create(str(tmp_path / "unanswered"))
    with TransactionProducer(store, producer_group="shop", clock=ManualClock()) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
    # The deadline counts from the commit file, so its time is set back.
    for commit in Path(store.location, "half", "_delta_log").iterdir():
        os.utime(commit, (0, 0))
    return store


def test_recheck_asks_what_is_due_and_says_what_became_of_it(unanswered: Store) -> None:
    listener = {"TXMQ_LISTENERS": f"{{shop: '{__name__}:SaysCommit'}}"}
    first = json.loads(run("recheck", unanswered.location, "--json", **listener).stdout)
    second = json.loads(run("recheck", unanswered.location, "--json", **listener).stdout)

    assert (first["checks"]["asked"], first["checks"]["committed"]) == (1, 1)
    assert (second["checks"]["asked"], second["open_transactions"]) == (0, 0)
    assert (second["next_check"], second["unheard_groups"]) == (None, [])


def test_recheck_tells_a_scheduler_of_groups_without_a_listener(unanswered: Store) -> None:
    settings = Path(unanswered.location).parent / "none.yaml"
    settings.write_text("listeners: {}\n", encoding="utf-8")

    # In the second one its pause is not over.
    for _ in range(2):
        result = run("recheck", unanswered.location, "--config", str(settings))
        (unheard,) = re.findall(r"groups without a listener +(\S+)", result.stdout)
        assert (result.exit_code, unheard) == (1, "shop")
        assert re.search(r"asked again +the next one at 20\S+ \S+Z; each: txmq open", result.stdout)

    listener = {"TXMQ_LISTENERS": f"{{shop: '{__name__}:SaysCommit'}}"}
    repaired = run("recheck", unanswered.location, **listener)
    assert repaired.exit_code == 0
    assert re.search(r" asked +1\s", repaired.stdout)


def test_recheck_without_an_answer_says_when_it_asks_again(unanswered: Store) -> None:
    listener = {"TXMQ_LISTENERS": f"{{shop: '{__name__}:SaysUnknown'}}"}
    asked = json.loads(run("recheck", unanswered.location, "--json", **listener).stdout)
    again = json.loads(run("recheck", unanswered.location, "--json", **listener).stdout)

    assert (asked["checks"]["unknown"], again["checks"]["asked"]) == (1, 0)
    assert asked["next_check"] == again["next_check"] > "2026"


def test_recheck_with_a_listener_that_cannot_be_loaded_is_one_line(store: Store) -> None:
    settings = Path(store.location).parent / "wrong.yaml"
    settings.write_text("listeners: {shop: 'no.such.module:Listener'}\n", encoding="utf-8")

    assert_one_line(run("recheck", store.location, "--config", str(settings)), "no.such.module")


# --- operators ------------------------------------------------------------------------------------

OPEN, DISCARDED = transaction_id(3), transaction_id(6)
WHY = ("--reason", "asked the shop")


def test_open_lists_what_has_no_final_end_oldest_first(made: HandMadeStore) -> None:
    result = run("open", made.location)

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert [line.split()[:2] for line in lines[1:5]] == [
        [OPEN, "PENDING"],
        [DISCARDED, "DISCARDED"],
        [transaction_id(8), "INCOMPLETE"],
        [transaction_id(11), "PENDING"],
    ]
    assert "MISSING" in lines[3]
    assert lines[-1] == "4 without a final end, 4 shown"


def test_open_of_one_group_and_with_a_limit(made: HandMadeStore) -> None:
    none = json.loads(run("open", made.location, "--group", "strangers", "--json").stdout)
    first = json.loads(run("open", made.location, "--limit", "1", "--json").stdout)

    assert none == {"total": 0, "transactions": []}
    assert first["total"] == 4
    assert [one["transaction_id"] for one in first["transactions"]] == [OPEN]
    assert "4 without a final end, 1 shown" in run("open", made.location, "--limit", "1").stdout


def test_discarded_list(made: HandMadeStore) -> None:
    result = run("discarded", "list", made.location)
    listed = json.loads(run("discarded", "list", made.location, "--json").stdout)

    assert result.exit_code == 0
    assert DISCARDED in result.stdout
    (one,) = listed["transactions"]
    assert (one["transaction_id"], one["check_times"]) == (DISCARDED, 1)
    assert one["discarded_at"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "arguments",
    [("resolve", OPEN, "--commit"), ("resolve", OPEN, "--rollback"), ("resume", DISCARDED)],
)
def test_claims_are_dry_by_default(made: HandMadeStore, arguments: tuple[str, ...]) -> None:
    command, *others = arguments
    before = table_versions(made.store)

    result = run(command, made.location, *others, *WHY)

    assert result.exit_code == 0
    assert "dry run, nothing was written" in result.stdout
    assert "asked the shop" in result.stdout
    assert table_versions(made.store) == before


def test_resolve_shows_what_would_follow(made: HandMadeStore) -> None:
    result = run("resolve", made.location, OPEN, "--commit", *WHY, COLUMNS="200")

    assert "PENDING -> COMMITTED" in result.stdout
    assert "1 (orders 1)" in result.stdout
    assert "body-3" not in result.stdout


def test_resolve_writes_with_apply_and_says_what_took_effect(made: HandMadeStore) -> None:
    result = run("resolve", made.location, OPEN, "--rollback", *WHY, "--apply", COLUMNS="200")

    assert result.exit_code == 0
    assert "written at op version 4; it is ROLLED_BACK (by operator)" in result.stdout
    life = json.loads(run("show", made.location, OPEN, "--json").stdout)
    assert life["state"] == "ROLLED_BACK"
    assert life["events"][-1]["details"]["reason"].endswith(": asked the shop")


def test_resolve_again_writes_nothing(made: HandMadeStore) -> None:
    before = table_versions(made.store)

    result = run("resolve", made.location, transaction_id(1), "--commit", *WHY, "--apply")

    assert result.exit_code == 0
    assert "already COMMITTED (by producer): nothing to write" in result.stdout
    assert table_versions(made.store) == before


def test_resume_opens_the_next_life(made: HandMadeStore) -> None:
    result = run("resume", made.location, DISCARDED, *WHY, "--apply", "--json")

    values = json.loads(result.stdout)
    assert (values["state_before"], values["state_after"]) == ("DISCARDED", "PENDING")
    assert (values["life"], values["is_written"]) == (1, True)
    assert json.loads(run("discarded", "list", made.location, "--json").stdout)["total"] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("resolve", transaction_id(500), "--commit"), "has no half message"),
        (("resolve", transaction_id(1), "--rollback"), "already COMMITTED"),
        (("resolve", DISCARDED, "--commit"), "resume it first"),
        (("resolve", transaction_id(8), "--commit"), "1 of 2 messages; repair, then resume"),
        (("resume", transaction_id(500)), "has no half message"),
        (("resume", transaction_id(2)), "already ROLLED_BACK"),
        (("resume", OPEN), "only a DISCARDED or INCOMPLETE"),
    ],
)
def test_claim_that_does_not_fit_is_one_line(
    made: HandMadeStore, arguments: tuple[str, ...], text: str
) -> None:
    command, *others = arguments
    before = table_versions(made.store)

    assert_one_line(run(command, made.location, *others, *WHY, "--apply"), text)
    assert table_versions(made.store) == before


def test_bad_reason_is_one_line(made: HandMadeStore) -> None:
    result = run("resume", made.location, DISCARDED, "--reason", "two\nlines")

    assert_one_line(result, "reason refused")


@pytest.mark.parametrize("ends", [(), ("--commit", "--rollback")])
def test_resolve_wants_one_end(made: HandMadeStore, ends: tuple[str, ...]) -> None:
    before = table_versions(made.store)

    result = run("resolve", made.location, OPEN, *ends, *WHY, "--apply")

    assert result.exit_code == 2
    assert "--commit / --rollback" in result.stderr
    assert table_versions(made.store) == before


@pytest.mark.parametrize("arguments", [("resolve", OPEN, "--commit"), ("resume", DISCARDED)])
def test_claim_without_a_reason_is_refused(made: HandMadeStore, arguments: tuple[str, ...]) -> None:
    command, *others = arguments

    result = run(command, made.location, *others, "--apply")

    assert result.exit_code == 2
    assert "--reason" in result.stderr


def test_claims_need_the_id_alone_where_the_environment_has_the_store(made: HandMadeStore) -> None:
    result = run("resume", DISCARDED, *WHY, "--json", TXMQ_LOCATION=made.location)

    assert json.loads(result.stdout)["is_needed"] is True


@pytest.mark.parametrize("command", [("open",), ("discarded", "list")])
def test_lists_of_a_place_without_a_store_are_one_line(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert_one_line(run(*command, str(tmp_path / "nothing")), "txmq init")
