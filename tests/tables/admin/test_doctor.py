"""The doctor finds each planted fault with its cure, and nothing in a healthy store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from txmq.consumer.pull import PullConsumer
from txmq.delta.folder import Objects
from txmq.errors import IncompatibleVersionError
from txmq.ground.clock import SystemClock
from txmq.ground.version import __version__
from txmq.maintenance.retention import tell_topic_begin
from txmq.message.message import Message
from txmq.ops import brokers as heartbeat
from txmq.ops.admin import doctor as machine_findings
from txmq.ops.admin import doctor as table_findings
from txmq.ops.admin.doctor import Doctor, Finding
from txmq.ops.brokers import Heartbeat
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.brokers import GONE_MS
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.topic import remove_messages
from txmq.testing import ManualClock, WrongClock

TOPIC = "orders"
Monkey = pytest.MonkeyPatch


class Plant(NamedTuple):
    """A fault: where the doctor must find it, and a word of what it must say."""

    where: str
    said: str
    plant: Callable[[Store, Monkey], Store | None]


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: Monkey) -> Store:
    """With messages, a reader and a broker, on a machine with room."""
    monkeypatch.setattr(machine_findings, "FREE_BYTES_MIN", 0)
    store = Store.create(tmp_path / "store")
    send(store, TOPIC)
    with PullConsumer(store, consumer_group="billing", topics=[TOPIC]) as consumer:
        assert consumer.poll(10, timeout_s=30.0)
        consumer.commit()
    beat(store, "one")
    return store


def send(store: Store, topic: str) -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send([Message(topic, b"1"), Message(topic, b"2")])
    Publisher(store).run_once()


def beat(store: Store, name: str, *, ago_ms: int = 0) -> None:
    clock = ManualClock(SystemClock().now_ms() - ago_ms)
    Heartbeat(store.tables, clock, name, ()).beat()


def findings(store: Store, clock: WrongClock | None = None) -> list[Finding]:
    return list(Doctor(store, clock=clock).examine(probes=True).findings)


# --- plants ---------------------------------------------------------------------------------------


def parked(store: Store, _: Monkey) -> None:
    (Path(store.location) / "topics" / "other").write_text("no folder")
    send(store, "other")


def damaged(store: Store, _: Monkey) -> None:
    for file in Path(store.location, "topics", TOPIC, "_delta_log").glob("*"):
        file.write_text("{")


def written_elsewhere(store: Store, _: Monkey) -> None:
    commits = Path(store.location, "half", "_delta_log").glob("*.json")
    newest = max(path for path in commits if '"add"' in path.read_text())
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = "../../elsewhere.parquet"
    newest.write_text("\n".join(map(json.dumps, lines)))


def swapped(store: Store, name: str, change: Mapping[str, object]) -> None:
    register = store.tables.register(name, create=True)
    seen = register.read()
    register.swap(seen, {**seen.value, **change}, 0)


def with_acting_settings(store: Store, _: Monkey) -> Store:
    swapped(store, "config", {"listeners": {"shop": "shop:Orders"}})
    return Store.open(store.location)


def gone(store: Store, _: Monkey) -> None:
    beat(store, "killed", ago_ms=GONE_MS + 60_000)


def of_two_versions(store: Store, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(heartbeat, "__version__", "0.0.9")
    beat(store, "older")


def without_a_broker(store: Store, _: Monkey) -> None:
    (Path(store.location) / "state" / "brokers").rename(Path(store.location) / "brokers.away")
    with TransactionProducer(store, producer_group="shop", clock=ManualClock(0)) as producer:
        producer.send(Message(TOPIC, b"3"))


def properties(path: str, **values: str) -> Callable[[Store, Monkey], None]:
    def plant(store: Store, _: Monkey) -> None:
        store.tables.table_at(path).writer.set_properties(
            {name.replace("__", "."): value for name, value in values.items()}
        )

    return plant


def of_a_newer_txmq(store: Store, monkeypatch: Monkey) -> None:
    # The table is read again after the change.
    with suppress(IncompatibleVersionError):
        properties("settled", txmq__schema_version="99")(store, monkeypatch)


def demands_a_feature(store: Store, _: Monkey) -> None:
    log = Path(store.location, "topics", TOPIC, "_delta_log")
    features = ["rowTracking", "domainMetadata"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    number = len(list(log.glob("*.json")))
    commit = {"commitInfo": {"timestamp": 0, "operation": "ALTER"}}
    lines = [json.dumps(commit), json.dumps({"protocol": protocol})]
    (log / f"{number:020}.json").write_text("\n".join(lines))


def without_checkpoints(store: Store, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(table_findings, "CHECKPOINTS_MISSED", 0.5)
    table = store.tables.table_at("topics/" + TOPIC)
    for number in range(12):
        table.writer.commit_marks({"test": number})
    for file in Path(table.location, "_delta_log").glob("*checkpoint*"):
        file.unlink()


def not_exclusive(_: Store, monkeypatch: Monkey) -> None:
    def put_new(self: Objects, path: str, content: bytes) -> bool:
        self.put(path, content)
        return True

    monkeypatch.setattr(Objects, "put_new", put_new)


def refused(method: str) -> Callable[[Store, Monkey], None]:
    def plant(_: Store, monkeypatch: Monkey) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError(method)

        target = machine_findings.StorageProbe if method.startswith("_") else Objects
        monkeypatch.setattr(target, method, refuse)

    return plant


def full(_: Store, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(machine_findings, "FREE_BYTES_MIN", 2**80)


def without_java(_: Store, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(machine_findings, "find_java", lambda: None)


def old_package(_: Store, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(machine_findings, "_requirements", lambda: ["obstore<9999,>=999.1"])


def settings(**values: float) -> Callable[[Store, Monkey], Store]:
    return lambda store, _: store.with_settings(store.config.replace(**values))


def behind_retention(store: Store, _: Monkey) -> None:
    send(store, TOPIC)
    table = store.tables.table_at(f"topics/{TOPIC}")
    begin = table.log.version
    told = tell_topic_begin(store, {TOPIC: begin}, 0)[TOPIC]
    remove_messages(table, table.files.all(), told.before, told.begin)


def lost_rows(store: Store, _: Monkey) -> None:
    send(store, "other")
    DeltaTable(store.topic_location("other")).delete()


def set_aside(store: Store, _: Monkey) -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message(TOPIC, b"3"))
    files = Path(store.location, "half").rglob("*.parquet")
    max(files, key=lambda file: file.stat().st_mtime_ns).write_bytes(b"")
    Publisher(store).run_once()


RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"
RUNBOOK_ROWS = [
    ([re.compile(re.escape(key).replace("…", ".+")) for key in re.findall("`([^`]+)`", cells[1])],
     cells)
    for line in RUNBOOK.read_text("utf-8").partition("## What the doctor finds")[2].splitlines()
    if len(cells := line.split("|")) == 5 and "`" in cells[1]
]  # fmt: skip

PLANTS = {
    "parked topic": Plant("topics/other", "is parked", parked),
    "damaged log": Plant(f"topics/{TOPIC}", "", damaged),
    "file of another place": Plant("half", "elsewhere", written_elsewhere),
    "acting settings": Plant(
        "listeners: 'shop' ('shop:Orders')", "nobody loads it", with_acting_settings
    ),
    "killed broker": Plant("brokers", "killed was seen last at", gone),
    "two versions": Plant(
        "brokers", f"different versions of txmq: 0.0.9, {__version__}", of_two_versions
    ),
    "no broker": Plant("brokers", "no broker is known to run", without_a_broker),
    "newer store": Plant("settled", "schema version 99", of_a_newer_txmq),
    "clean-up by others": Plant(
        "op", "ExpiredLogCleanup", properties("op", delta__enableExpiredLogCleanup="true")
    ),
    "no change feed": Plant(
        "half", "ChangeDataFeed", properties("half", delta__enableChangeDataFeed="false")
    ),
    "feature": Plant(f"topics/{TOPIC}", "rowTracking", demands_a_feature),
    "no checkpoints": Plant(f"topics/{TOPIC}", "no checkpoint for", without_checkpoints),
    "two writers": Plant("storage", "4 of 4 writers", not_exclusive),
    "no right to write": Plant("rights", "cannot be written", refused("put_new")),
    "no right to list": Plant("rights", "cannot be listed", refused("names")),
    "no right to read": Plant("rights", "cannot be read", refused("_is_read")),
    "no right to delete": Plant("rights", "cannot be deleted", refused("_deleted")),
    "full disk": Plant("disk", "bytes are free", full),
    "no Java": Plant("Java", "no Java 17", without_java),
    "old package": Plant("package obstore", "needs <9999,>=999.1", old_package),
    "late looks": Plant(
        "check_trigger_interval_s", "60 s, longer", settings(check_trigger_interval_s=60.0)
    ),
    "short logs": Plant(
        "recheck_interval_s", "longer than log_reserved", settings(log_reserved_time_s=60.0)
    ),
    "behind retention": Plant("group billing", "2 messages of orders unread", behind_retention),
    "removed by others": Plant("topics/other", "another program removed", lost_rows),
    "set aside": Plant("state/set_aside", "1 transactions wait", set_aside),
}


# --- tests ----------------------------------------------------------------------------------------


def test_healthy_store_has_no_finding_and_the_probe_leaves_nothing(healthy: Store) -> None:
    assert findings(healthy) == []
    assert list(Path(healthy.location, "clock").iterdir()) == []
    result = CliRunner().invoke(app, ["doctor", healthy.location, "--probe"])
    assert (result.exit_code, "nothing found" in result.stdout) == (0, True)


@pytest.mark.parametrize("name", PLANTS)
def test_planted_fault_is_found_with_its_cure(
    healthy: Store, monkeypatch: Monkey, name: str
) -> None:
    where, said, plant = PLANTS[name]
    found = findings(plant(healthy, monkeypatch) or healthy)

    fits = [one for one in found if one.where == where and said in one.problem]
    assert fits, found
    assert fits[0].next_step
    for one in found:
        # One row of the runbook is the first that fits; each has a step to take.
        rows = [row for keys, row in RUNBOOK_ROWS if any(key.search(one.problem) for key in keys)]
        assert rows, one


def test_each_row_of_the_runbook_is_about_a_finding_that_there_is() -> None:
    sources = (Path(__file__).parents[3] / "txmq").rglob("*.py")
    texts = "".join(path.read_text("utf-8") for path in sources)

    for keys, cells in RUNBOOK_ROWS:
        assert all(cell.strip() for cell in cells[1:4]), cells
        for key in re.findall("`([^`]+)`", cells[1]):
            parts = [part.strip(" :") for part in re.split("…|longer than|cannot be", key)]
            assert all(part in texts for part in parts), (key, keys)


def test_wrong_clock_of_the_machine_is_found(healthy: Store) -> None:
    now = ManualClock(SystemClock().now_ms())
    (finding,) = findings(healthy, WrongClock(-60.0, of_store=now))

    assert (finding.where, "60.0 s behind" in finding.problem) == ("clock", True)


def test_without_probes_nothing_is_written(healthy: Store, monkeypatch: Monkey) -> None:
    not_exclusive(healthy, monkeypatch)
    before = sorted(Path(healthy.location).rglob("*"))

    assert Doctor(healthy).examine().findings == ()
    assert sorted(Path(healthy.location).rglob("*")) == before


@pytest.mark.parametrize(
    ("version", "limits", "is_so"),
    [("1.6.6", ">=1.6.6,<1.7", True), ("1.7", ">=1.6.6,<1.7", False), ("26.0.0", ">=18", True),
     ("0.9.9", "<0.13,>=0.10", False), ("4.2.0+local", ">=4.2.0,<4.3", True), ("3", "", True)],
)  # fmt: skip
def test_version_is_compared_with_its_limits(version: str, limits: str, *, is_so: bool) -> None:
    assert machine_findings.is_within(version, limits) is is_so


def test_settings_that_are_the_defaults_fit_each_other(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "new", Config())
    assert [one.where for one in Doctor(store).examine().findings if "_s" in one.where] == []
