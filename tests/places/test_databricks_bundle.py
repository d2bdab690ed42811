"""The bundle of deploy/databricks against what Databricks publishes, as far as it can be had.

`make bundle` installs Databricks's types for bundles beside the environment: their licence allows
to use them for a bundle, not to ship them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.kit import bundle

TYPES = os.environ.get("DATABRICKS_BUNDLES", "")
# What `databricks bundle schema` printed; else the command is asked.
SCHEMA = os.environ.get("DATABRICKS_BUNDLE_SCHEMA", "")
COMMAND = shutil.which("databricks")

needs_types = pytest.mark.skipif(not TYPES, reason="make bundle installs Databricks's types")
needs_schema = pytest.mark.skipif(
    not (SCHEMA or COMMAND),
    reason="the command databricks is not installed, nor is its schema given",
)


CODE = """
import json, sys
from databricks.bundles.jobs import Job
for name, job in json.load(sys.stdin).items():
    try:
        Job.from_dict(job)
    except Exception as error:
        print(name, repr(error))
"""


def problems_of(jobs: dict[str, bundle.Part]) -> str:
    """What Databricks's types say against jobs; nothing if they take them."""
    return subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(jobs), env={"PYTHONPATH": TYPES},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@needs_types
def test_databricks_types_take_every_job() -> None:
    jobs = {name: job for _, name, job in bundle.jobs()}

    assert jobs
    assert problems_of(jobs) == ""


@needs_types
def test_databricks_types_refuse_a_misspelt_field() -> None:
    job = next(job for _, name, job in bundle.jobs() if name == "recheck")
    job["tasks"][0]["enviroment_key"] = "txmq"

    assert "Unexpected field 'enviroment_key'" in problems_of({"recheck": job})


@pytest.fixture(scope="module")
def published() -> jsonschema.Draft202012Validator:
    if SCHEMA:
        text = Path(SCHEMA).read_text("utf-8")
    else:
        assert COMMAND is not None
        command = [COMMAND, "bundle", "schema"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # The classes of letters and digits that Go's expressions have and Python's have not.
    text = text.replace(r"[\\p{L}\\p{N}]", "[A-Za-z0-9]").replace(r"\\p{L}", "[A-Za-z]")
    return jsonschema.Draft202012Validator(json.loads(text))


@needs_schema
@pytest.mark.parametrize("path", bundle.files(), ids=lambda path: path.name)
def test_published_schema_takes_every_file(
    path: Path, published: jsonschema.Draft202012Validator
) -> None:
    published.validate(bundle.parsed(path))


@needs_schema
@pytest.mark.parametrize("where", [("tasks", 0), ("environments", 0), ("schedule",)])
def test_published_schema_refuses_a_misspelt_field(
    where: tuple[Any, ...], published: jsonschema.Draft202012Validator
) -> None:
    path, name, _ = next(each for each in bundle.jobs() if each[1] == "recheck")
    part = bundle.parsed(path)
    place = part["resources"]["jobs"][name]
    for step in where:
        place = place[step]
    place["misspelt"] = "x"

    assert not published.is_valid(part)
