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
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


# --- the command itself ---------------------------------------------------------------------------


class Workspace(BaseHTTPRequestHandler):
    """Knows who asks, and has each folder."""

    def do_GET(self) -> None:
        answers = {
            "/api/2.0/preview/scim/v2/Me": {"userName": "somebody@example.com", "id": "1"},
            "/api/2.0/workspace/get-status": {"object_type": "DIRECTORY", "object_id": 1},
            "/api/2.0/permissions/directories/1": {"access_control_list": []},
        }
        answer = answers.get(self.path.partition("?")[0])
        self._answer(answer is not None, answer or {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(self.path.endswith("/mkdirs"), {})

    def _answer(self, is_known: bool, content: Mapping[str, object]) -> None:  # noqa: FBT001 - one of two
        body = json.dumps(content).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """What the command says is what counts."""


@pytest.fixture(scope="module")
def workspace() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Workspace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def validated(workspace: str, folder: Path, *variables: str) -> str:
    """What `databricks bundle validate` says, on a copy: it writes beside the bundle."""
    assert COMMAND is not None
    for part in ("deploy/databricks", "notebooks"):
        shutil.copytree(bundle.PROJECT / part, folder / part, dirs_exist_ok=True)
    target, *given = variables
    command = [COMMAND, "bundle", "validate", "-t", target, *(f"--var={each}" for each in given)]
    done = subprocess.run(
        command, cwd=folder / "deploy" / "databricks", capture_output=True, text=True, check=False,
        env={"DATABRICKS_HOST": workspace, "DATABRICKS_TOKEN": "x", "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.skipif(not COMMAND, reason="the command databricks is not installed")
def test_command_validates_both_targets(workspace: str, tmp_path: Path) -> None:
    location = "location=s3://lake/txmq"
    principal = "11111111-2222-3333-4444-555555555555"

    dev = validated(workspace, tmp_path, "dev", location)
    prod = validated(
        workspace, tmp_path, "prod", location, f"principal={principal}", "alerts_to=a@example.com"
    )

    assert "Validation OK!" in dev
    assert "error" not in prod.lower()
    # The command's own warning about folders that every user may write.
    assert "writable by all" not in prod
    assert f"/Workspace/Users/{principal}/.bundle/txmq/prod" in prod


@pytest.mark.skipif(not COMMAND, reason="the command databricks is not installed")
@pytest.mark.parametrize("missing", ["principal", "alerts_to"])
def test_command_refuses_a_production_without_a_principal_or_somebody_who_hears_of_failures(
    workspace: str, tmp_path: Path, missing: str
) -> None:
    given = {"location": "s3://lake/txmq", "principal": "11", "alerts_to": "a@example.com"}
    del given[missing]

    said = validated(workspace, tmp_path, "prod", *(f"{key}={given[key]}" for key in given))

    assert f"no value assigned to required variable {missing}" in said
