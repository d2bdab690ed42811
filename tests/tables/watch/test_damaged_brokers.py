"""Nothing rests on what brokers say of themselves, so damage of it stops nobody."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from txmq.ground.clock import SystemClock, timestamp
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.status import Admin
from txmq.ops.brokers import Heartbeat
from txmq.ops.cli.app import app
from txmq.ops.dashboard.snapshot import Counting
from txmq.ops.metrics.meter import Meter
from txmq.store.register import REVISION_MARK
from txmq.store.schemas import REGISTER
from txmq.store.shapes import NAME_CHARACTERS_MAX
from txmq.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    beat(store, "one")
    return store


def beat(store: Store, name: str) -> None:
    Heartbeat(store.tables, SystemClock(), name, ("publisher",)).beat()


def put(store: Store, text: str) -> None:
    table, revision = store.tables.register("brokers").table, time.time_ns()
    row = {"revision": [revision], "value": [text], "updated_timestamp": [timestamp(0)]}
    table.writer.replace(pa.table(row, schema=REGISTER.columns), {REVISION_MARK: revision})


def broker(**fields: object) -> str:
    entry = {"name": "x", "version": "1", "services": [], "started_ms": 1, "seen_ms": 1}
    return json.dumps({"brokers": {"a": entry | fields}})


def with_garbage(store: Store) -> None:
    for file in Path(store.location, "state", "brokers", "_delta_log").iterdir():
        file.write_bytes(b"garbage")


def of_a_newer_txmq(store: Store) -> None:
    file = Path(store.location, "state", "brokers", "_delta_log", f"{0:020}.json")
    text = file.read_text()
    assert '"txmq.schema_version":"' in text
    head, _, tail = text.partition('"txmq.schema_version":"')
    file.write_text(f'{head}"txmq.schema_version":"99{tail[tail.index(chr(34)) :]}')


DAMAGES: dict[str, tuple[Callable[[Store], None], bool]] = {
    "no JSON": (lambda store: put(store, "{"), True),
    "wrong shape": (lambda store: put(store, '{"brokers":[1]}'), True),
    "long name": (lambda store: put(store, broker(name="A" * (NAME_CHARACTERS_MAX + 1))), True),
    "many services": (lambda store: put(store, broker(services=["a"] * 1000)), True),
    "garbage log": (with_garbage, False),
    "newer version": (of_a_newer_txmq, False),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_register_of_brokers_stops_no_look(store: Store, damage: str) -> None:
    plant, is_replaced = DAMAGES[damage]
    plant(store)
    store = Store.open(store.location)

    status = Admin(store).status()
    assert (status.brokers, bool(status.brokers_problem)) == ((), True)
    Meter(store).count()
    Counting(store).count()
    said = CliRunner().invoke(app, ["status", store.location])
    assert (said.exit_code, "the brokers cannot be read" in said.stdout) == (0, True)
    assert "state/brokers" in {one.where for one in Doctor(store).examine().findings}

    beat(store, "two")
    names = [one.name for one in Admin(store).status().brokers]
    assert names == (["two"] if is_replaced else [])


def test_brokers_of_one_name_are_all_shown_and_those_beyond_five_are_counted(
    store: Store,
) -> None:
    for _ in range(6):
        beat(store, "one")
    said = CliRunner().invoke(app, ["status", store.location]).stdout
    assert said.count("runs since") == 5
    assert " ".join(said.split()).endswith("and 2 more")


def test_others_are_one_warning_without_commands_of_a_terminal(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for number in range(7):
            beat(store, f"\x1b[31m{number}" + "n" * 1000)
    beat(store, "last")
    (said,) = caplog.messages
    assert said.startswith("8 other brokers serve this store: ")
    assert said.split("; ")[5] == "and 3 more"
    assert "\x1b" not in said
    result = CliRunner().invoke(app, ["status", store.location])
    assert (result.exit_code, "\x1b[31m" in result.stdout) == (0, False)
