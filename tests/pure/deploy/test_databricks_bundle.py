"""The bundle of deploy/databricks: its fields, its paths, what its tasks pass to the jobs."""

from __future__ import annotations

import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import txmq
from tests.kit import bundle
from txmq import job as job_module
from txmq.store.tables import plain_location

SCHEMA = yaml.safe_load(Path(__file__).with_name("bundle_schema.yaml").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LOCATION = "s3://lake/txmq"
# What `${…}` may name beside the variables.
KNOWN = {"bundle.name", "bundle.target", "workspace.current_user.userName"}
SCRIPTS = [
    (path, task["spark_python_task"])
    for path, _, task in bundle.tasks()
    if "spark_python_task" in task
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
        lambda job: job["tasks"][0]["spark_python_task"].update(parameter=["x"]),
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
        (path.parent / place).resolve()
        for path, _, task in bundle.tasks()
        for place in (
            task.get("spark_python_task", {}).get("python_file"),
            task.get("notebook_task", {}).get("notebook_path"),
        )
        if place is not None
    ]

    assert named
    assert [place for place in named if not place.is_file()] == []
    assert [place for place in named if not set(uploaded) & set(place.parents)] == []


def test_every_task_gets_the_wheel_that_the_bundle_builds() -> None:
    artifact = bundle.parsed(bundle.ROOT_FILE)["artifacts"]["wheel"]
    project = (bundle.FOLDER / artifact["path"]).resolve()
    wheel = project / "dist" / f"txmq-{txmq.__version__}-py3-none-any.whl"

    assert project == bundle.PROJECT
    assert "--wheel-dir dist" in artifact["build"]
    for path, job, task in bundle.tasks():
        given = [each["whl"] for each in task.get("libraries", []) if "whl" in each]
        for environment in job.get("environments", []):
            if environment["environment_key"] == task.get("environment_key"):
                given += environment["spec"]["dependencies"]
        assert [fnmatch(str(wheel), str((path.parent / each).resolve())) for each in given] == [
            True
        ], task["task_key"]


class ParsedError(Exception):
    """Raised in the place of the store that a job would open."""


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, list[str]], Namespace]:
    """Runs a script up to the end of its own parser."""

    def opened(options: Namespace) -> None:
        raise ParsedError(options)

    def run(script: Path, arguments: list[str]) -> Namespace:
        monkeypatch.setattr(job_module, "_opened", opened)
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        with pytest.raises(ParsedError) as caught:
            runpy.run_path(str(script), run_name="__main__")
        options: Namespace = caught.value.args[0]
        return options

    return run


@pytest.mark.parametrize(
    ("path", "task"), SCRIPTS, ids=[f"{path.stem} {task['python_file']}" for path, task in SCRIPTS]
)
def test_job_takes_the_parameters_of_its_task(
    path: Path, task: bundle.Part, parse: Callable[[Path, list[str]], Namespace]
) -> None:
    given = [bundle.filled(each, location=LOCATION) for each in task["parameters"]]

    options = parse(path.parent / task["python_file"], given)

    assert plain_location(options.location) == LOCATION
    assert options.secrets == ""
    assert getattr(options, "catalog", "main.messages") == "main.messages"


@pytest.mark.parametrize(("path", "task"), SCRIPTS[:1])
def test_misspelt_parameter_would_be_refused(
    path: Path, task: bundle.Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = path.parent / task["python_file"]
    monkeypatch.setattr(sys, "argv", [str(script), LOCATION, "--secret-scope=lake"])

    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(script), run_name="__main__")

    assert caught.value.code == 2


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
    root = bundle.parsed(bundle.ROOT_FILE)
    prod = root["targets"]["prod"]

    assert prod["run_as"] == {"service_principal_name": "${var.principal}"}
    rights = {
        each["level"]
        for part in [prod, *(job for _, _, job in bundle.jobs())]
        for each in part["permissions"]
        if "group_name" in each
    }
    assert rights == {"CAN_VIEW", "CAN_MANAGE_RUN"}
