"""The bundle of deploy/databricks: its fields, its paths, what its tasks pass to the jobs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import txmq
from tests.kit import bundle
from txmq import job as job_module
from txmq.listeners.protocol import load_listeners
from txmq.spark.listeners import QueryListener
from txmq.store.config import Config
from txmq.store.tables import plain_location

SCHEMA = yaml.safe_load(Path(__file__).with_name("bundle_schema.yaml").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LOCATION = "s3://lake/txmq"
# What `${…}` may name beside the variables.
KNOWN = {
    "bundle.name", "bundle.target", "workspace.current_user.userName", "workspace.file_path",
}  # fmt: skip
TASKS = [
    (job["name"], task["python_wheel_task"])
    for _, job, task in bundle.tasks()
    if "python_wheel_task" in task
]


def texts(part: Any) -> list[str]:
    """Every text of a part, at any depth, keys too."""
    if isinstance(part, dict):
        return [text for pair in part.items() for each in pair for text in texts(each)]
    if isinstance(part, list):
        return [text for each in part for text in texts(each)]
    return [str(part)]


@pytest.mark.parametrize("path", bundle.files(), ids=lambda path: path.name)
def test_files_have_the_fields_of_a_bundle(path: Path) -> None:
    VALIDATOR.validate(bundle.parsed(path))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job["tasks"][0].update(enviroment_key="txmq"),
        lambda job: job["tasks"][0]["python_wheel_task"].update(parameter=["x"]),
        lambda job: job["schedule"].update(pause_status="STOPPED"),
        lambda job: job["environments"][0]["spec"].pop("environment_version"),
        lambda job: job["tasks"][0].pop("environment_key"),
    ],
)
def test_a_mistake_in_a_job_would_be_refused(spoil: Callable[[bundle.Part], Any]) -> None:
    path, name, _ = next(each for each in bundle.jobs() if each[1] == "broker_once")
    part = bundle.parsed(path)
    spoil(part["resources"]["jobs"][name])

    assert not VALIDATOR.is_valid(part)


def test_every_variable_is_declared_and_used() -> None:
    said = "\n".join(path.read_text("utf-8") for path in bundle.files())
    named = set(bundle.REFERENCE.findall(said))
    declared = {f"var.{name}" for name in bundle.parsed(bundle.ROOT_FILE)["variables"]}

    assert named - KNOWN == declared


def test_every_file_that_a_task_names_is_there_and_is_uploaded() -> None:
    root = bundle.parsed(bundle.ROOT_FILE)
    uploaded = [(bundle.FOLDER / each).resolve() for each in root["sync"]["paths"]]
    named = [
        (path.parent / task["notebook_task"]["notebook_path"]).resolve()
        for path, _, task in bundle.tasks()
        if "notebook_task" in task
    ]
    named += [
        Path(bundle.filled(each.partition("=")[2]))
        for _, task in TASKS
        for each in task["parameters"]
        if "${workspace.file_path}" in each
    ]

    assert {path.name for path in named} == {"quickstart.py", "settings.yaml"}
    assert [place for place in named if not place.is_file()] == []
    assert [place for place in named if not set(uploaded) & set(place.parents)] == []


def dependencies(job: bundle.Part, task: bundle.Part) -> list[str]:
    """The wheels and packages that a task is given."""
    given = [each["whl"] for each in task.get("libraries", []) if "whl" in each]
    for environment in job.get("environments", []):
        if environment["environment_key"] == task.get("environment_key"):
            given += environment["spec"]["dependencies"]
    return given


def test_every_task_gets_the_wheels_that_the_bundle_builds() -> None:
    artifacts = bundle.parsed(bundle.ROOT_FILE)["artifacts"]
    sources = {
        name: str((bundle.FOLDER / artifact["files"][0]["source"]).resolve())
        for name, artifact in artifacts.items()
    }

    assert fnmatch(f"txmq-{txmq.__version__}-py3-none-any.whl", Path(sources["txmq"]).name)
    for path, job, task in bundle.tasks():
        given = {str((path.parent / each).resolve()) for each in dependencies(job, task)}
        wanted = {"txmq", "listeners"} if "python_wheel_task" in task else {"txmq"}
        assert given == {sources[name] for name in wanted}, task["task_key"]


def test_no_wheel_of_another_version_is_taken(tmp_path: Path) -> None:
    """The folder of an artifact is empty before each build, and each build has a version."""
    for artifact in bundle.parsed(bundle.ROOT_FILE)["artifacts"].values():
        built = (bundle.FOLDER / artifact["files"][0]["source"]).parent.resolve()
        project = (bundle.FOLDER / artifact["path"]).resolve()
        folder = built.relative_to(project)
        old, stale = tmp_path / folder / "txmq-0.0.1-py3-none-any.whl", tmp_path / "build" / "x"
        for path in (old, stale):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        clean, and_then, build = artifact["build"].partition(" && ")
        subprocess.run(["/bin/sh", "-c", clean], cwd=tmp_path, check=True)

        assert (and_then, old.exists(), stale.exists()) == (" && ", False, False)
        assert f"--no-deps --wheel-dir {folder} ." in build
        assert artifact["dynamic_version"]


def test_no_name_is_installed_from_an_index_that_is_not_ours() -> None:
    """txmq is on no index: a package of that name there would be somebody else's."""
    said = [text for path in bundle.files() for text in texts(bundle.parsed(path))]
    pages = [*(bundle.PROJECT / "notebooks").glob("*.py"), bundle.PROJECT / "docs/databricks.md"]
    said += [line for path in pages for line in path.read_text("utf-8").splitlines()]

    assert [line for line in said if re.search(r"pip install\W+txmq", line)] == []
    packages = [
        each["pypi"]["package"]
        for _, _, task in bundle.tasks()
        for each in task.get("libraries", [])
        if "pypi" in each
    ]
    assert packages == ["prometheus_client>=0.20,<1"]


# --- what a task runs -----------------------------------------------------------------------------


class ParsedError(Exception):
    """Raised in the place of the store that a job would open."""


def entry_points() -> dict[str, str]:
    """The jobs of the wheel, as setup.cfg declares them."""
    settings = ConfigParser()
    settings.read(bundle.PROJECT / "setup.cfg", encoding="utf-8")
    lines = settings["options.entry_points"]["packages"].strip().splitlines()
    return dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines)


def started(entry_point: str, parameters: list[str]) -> int:
    """Call an entry point as Databricks does: by its name, with parameters in `sys.argv`."""
    module, function = entry_points()[entry_point].split(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["txmq", *parameters])
        code: int = getattr(importlib.import_module(module), function)()
    return code


def given_to(task: bundle.Part, **given: str) -> list[str]:
    return [bundle.filled(each, **given) for each in task["parameters"]]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[bundle.Part], Namespace]:
    """Runs a task up to the end of its own parser."""

    def opened(options: Namespace) -> None:
        raise ParsedError(options)

    def run(task: bundle.Part) -> Namespace:
        monkeypatch.setattr(job_module, "_opened", opened)
        with pytest.raises(ParsedError) as caught:
            started(task["entry_point"], given_to(task, location=LOCATION))
        options: Namespace = caught.value.args[0]
        return options

    return run


@pytest.mark.parametrize(("name", "task"), TASKS, ids=[name for name, _ in TASKS])
def test_job_takes_the_parameters_of_its_task(
    name: str, task: bundle.Part, parse: Callable[[bundle.Part], Namespace]
) -> None:
    options = parse(task)

    assert task["package_name"] == "txmq"
    assert plain_location(options.location) == LOCATION
    assert (options.secrets, options.credentials) == ("", "")
    assert getattr(options, "catalog", "main.messages") == "main.messages"
    # Who asks listeners is told of yours.
    asks = name in {"txmq-broker", "txmq-broker-once", "txmq-recheck"}
    assert (options.config is not None) == asks


def test_misspelt_parameter_would_be_refused() -> None:
    with pytest.raises(SystemExit) as caught:
        started("recheck", [LOCATION, "--secret-scope=lake"])

    assert caught.value.code == 2


def test_every_entry_point_is_a_task_of_the_bundle() -> None:
    assert {task["entry_point"] for _, task in TASKS} == set(entry_points())


def test_settings_of_the_bundle_name_a_listener_of_its_wheel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = bundle.FOLDER / "listeners"
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    monkeypatch.syspath_prepend(folder)
    config = Config.from_yaml(bundle.FOLDER / "settings.yaml")

    assert project["project"]["name"] == "txmq-listeners"
    assert project["tool"]["setuptools"]["py-modules"] == ["order_listeners"]
    ((group, listener),) = load_listeners(config.listeners).items()
    assert group == "order-service"
    # A row that is not there yet is no reason to roll back: there is no fence.
    assert isinstance(listener, QueryListener)
    others = config.replace(listeners={}, listener_timeout_s=10.0, check_lease_s=30.0)
    assert others == Config()


def test_notebook_reads_the_parameters_that_it_is_given() -> None:
    for path, _, task in bundle.tasks():
        if "notebook_task" in task:
            code = (path.parent / task["notebook_task"]["notebook_path"]).read_text("utf-8")
            read = set(re.findall(r"dbutils\.widgets\.get\(.(\w+).\)", code))
            assert set(task["notebook_task"]["base_parameters"]) == read


RANGES = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12),
          ("weekday", 1, 7))  # fmt: skip


def quartz_problem(expression: str) -> str | None:
    """Why Quartz would not take an expression of numbers; of its words none is used here."""
    fields = expression.split()
    if len(fields) != len(RANGES):
        return f"{len(fields)} fields"
    if [fields[3], fields[5]].count("?") != 1:
        return "one of day and weekday must be ?"
    for field, (name, low, high) in zip(fields, RANGES, strict=True):
        match = re.fullmatch(r"\?|\*|(\d+)(?:/(\d+))?", field)
        if match is None or any(
            number and not low <= int(number) <= high for number in match.groups()
        ):
            return f"{name}: {field}"
    return None


@pytest.mark.parametrize("expression", ["0 5 * * *", "0 0 25 * * ?", "0 0 3 * * *", "x 0 3 * * ?"])
def test_what_is_no_expression_is_known_as_such(expression: str) -> None:
    assert quartz_problem(expression)


def test_every_schedule_is_a_quartz_expression_in_utc() -> None:
    schedules = [job["schedule"] for _, _, job in bundle.jobs() if "schedule" in job]

    assert schedules
    for schedule in schedules:
        assert quartz_problem(bundle.filled(schedule["quartz_cron_expression"])) is None
        assert schedule["timezone_id"] == "UTC"


def test_serverless_tasks_ask_for_nothing_that_serverless_refuses() -> None:
    for _, job, task in bundle.tasks():
        if "environment_key" in task:
            assert "continuous" not in job
            assert "job_clusters" not in job
            assert "libraries" not in task


def test_bundle_names_nothing_that_txmq_refuses_or_databricks_would_break_by() -> None:
    said = "\n".join(text for path in bundle.files() for text in texts(bundle.parsed(path)))

    for refused in ("/Volumes", "/dbfs", "dbfs:", "txmq[spark]", "maven", "delta.write.txn"):
        assert refused not in said
    clusters = [
        each["default"]
        for each in bundle.parsed(bundle.ROOT_FILE)["variables"].values()
        if each.get("type") == "complex"
    ]
    known = {"spark.databricks.cluster.profile", "spark.master"}
    assert [set(cluster["spark_conf"]) - known for cluster in clusters] == [set()]


def test_nothing_runs_by_itself_in_development() -> None:
    dev = bundle.parsed(bundle.ROOT_FILE)["targets"]["dev"]

    assert dev["mode"] == "development"
    for _, _, job in bundle.jobs():
        trigger = job.get("schedule", job.get("continuous", {}))
        # Without a word of its own it is paused by the mode.
        said = bundle.filled(trigger.get("pause_status", "PAUSED"), **dev["variables"])
        assert said == "PAUSED"


def test_production_runs_as_its_own_principal_and_operators_change_nothing() -> None:
    prod = bundle.parsed(bundle.ROOT_FILE)["targets"]["prod"]

    assert prod["run_as"] == {"service_principal_name": "${var.principal}"}
    # Who may run a job may give it other parameters, such as settings with a class of theirs.
    rights = {each.get("group_name"): each["level"] for each in prod["permissions"]}
    assert rights == {None: "CAN_MANAGE", "${var.operators}": "CAN_VIEW"}
    # It holds for all jobs, and no job says otherwise.
    assert [name for _, name, job in bundle.jobs() if "permissions" in job] == []


def test_what_runs_as_the_principal_lies_where_it_alone_may_write() -> None:
    prod = bundle.parsed(bundle.ROOT_FILE)["targets"]["prod"]
    ways = {way for _, _, task in bundle.tasks() for way in task if way.endswith("_task")}

    root = prod["workspace"]["root_path"]
    assert root == "/Workspace/Users/${var.principal}/.bundle/${bundle.name}/${bundle.target}"
    assert ways == {"python_wheel_task", "notebook_task"}
    assert "/Workspace/Shared" not in "".join(path.read_text("utf-8") for path in bundle.files())


def test_alerts_go_to_somebody_who_was_named() -> None:
    root = bundle.parsed(bundle.ROOT_FILE)

    # In prod a principal deploys: its name is an application id, which reads no mail.
    assert "default" not in root["variables"]["alerts_to"]
    assert "alerts_to" not in root["targets"]["prod"].get("variables", {})
    assert root["targets"]["dev"]["variables"]["alerts_to"] == "${workspace.current_user.userName}"


def test_nodes_of_aws_have_a_volume() -> None:
    cluster = bundle.parsed(bundle.ROOT_FILE)["variables"]["broker_compute"]["default"]

    assert cluster["aws_attributes"]["ebs_volume_count"] >= 1
    assert cluster["aws_attributes"]["ebs_volume_size"] >= 100
