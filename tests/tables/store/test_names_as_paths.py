"""Names in rows are names: no topic, group or id becomes a path outside of the store."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.check_world import CheckWorld
from txmq.check.recheck import RecheckJob
from txmq.errors import TxmqError
from txmq.maintenance.service import Maintenance
from txmq.message.lifecycle import ClaimKind
from txmq.publish.publisher import Publisher
from txmq.store.schemas import HALF

PACKAGE = Path(__file__).parents[3] / "txmq"
RUNS_TEXT = {"eval", "exec", "compile", "__import__", "import_module"}
RUNNERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
# Names of txmq's own modules, the classes of an operator's settings, one package of Databricks.
# The last one names two packages that are extras.
ALLOWED = {"__init__.py", "listeners/protocol.py", "job.py", "delta/credentials.py"}


@pytest.mark.parametrize(
    "name", ["../../evil", "/nowhere-txmq/evil", "a/../../../evil", "..", "%2e%2e/e"]
)
def test_topic_and_group_that_are_paths_make_nothing_outside(tmp_path: Path, name: str) -> None:
    world = CheckWorld(tmp_path / "inside")
    before = outside(tmp_path)

    def named(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        columns = HALF.columns.names
        return [tuple({**dict(zip(columns, row, strict=True)), "real_topic": name,
                       "producer_group": name}.values()) for row in rows]  # fmt: skip

    (own_id,) = world.prepare(change=named)
    world.clock.advance(60)
    with suppress(TxmqError):
        RecheckJob(world.store, clock=world.clock).run_once()
    world.claim([own_id], ClaimKind.COMMIT, group=name)
    for _ in range(2):
        with suppress(TxmqError):
            Publisher(world.store, clock=world.clock).run_once()
    Maintenance(world.store, clock=world.clock).run_once()

    assert outside(tmp_path) == before
    assert not Path("/nowhere-txmq/evil").exists()
    assert not (Path(world.store.location) / "evil").exists()


def outside(folder: Path) -> set[str]:
    return {str(path) for path in folder.iterdir()}


def test_no_code_runs_what_a_store_says() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name in runners_in(path)
    }

    assert {path for path, _ in found} == ALLOWED


def runners_in(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names} & RUNNERS
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} & RUNNERS
            names |= {alias.name for alias in node.names} & RUNS_TEXT
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= {node.func.id} & RUNS_TEXT
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_regex = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            names |= set() if is_regex else {node.func.attr} & (RUNS_TEXT | {"unsafe_load"})
    return names
