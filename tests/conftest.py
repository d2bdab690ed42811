"""Fixtures of all tiers; `spark` is made on first use, so a tier without it never starts a JVM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.books import Books
from tests.kit.class_archive import use_archive
from tests.kit.delay_world import DelayWorld
from tests.kit.delayed import delayed_store
from tests.kit.stores import HandMadeStore, clean_store, fresh_store
from txmq.delta import checkpoints, table_writer
from txmq.delta.folder import TableFolder
from txmq.ground.handles import ThreadHandle
from txmq.store.store import Store
from txmq.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit import databases

_TESTS = Path(__file__).parent
# The longest first, so that all workers end at about the same time.
_TIERS = ("endurance", "process", "spark", "tables", "pure")
# A file, or a test of a file.
_LONG = {
    line
    for line in (_TESTS / "long.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
}
_LONGEST = "test_store_state_machine"
# About half of the time that tests with Spark take.
_SECOND_JAVA = (
    "spark/verify", "spark/publish", "spark/listeners", "spark/delta",
    "spark/consumer/test_topic_streams", "spark/consumer/test_retries",
)  # fmt: skip
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, **_COMMON)
settings.register_profile("ci", max_examples=1_000, **_COMMON)
settings.register_profile("night", max_examples=20_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure() -> None:
    """Java starts quicker with the archive of `make archive`; inherited by all processes."""
    use_archive()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test with its tier, which is its folder, and with `spark` where it needs one."""
    if _tier(item) in _TIERS:
        item.add_marker(_tier(item))
    if {f"tests/{_place(item)}", item.nodeid.partition("[")[0]} & _LONG:
        item.add_marker("long")
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("needs_spark")
        # Java starts and warms up in two workers, and each module makes its stores once.
        is_second = _place(item).startswith(_SECOND_JAVA)
        item.add_marker(pytest.mark.xdist_group("spark-2" if is_second else "spark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort them by tier."""
    items.sort(key=_turn)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was skipped because a database is missing."""
    from tests.kit.databases import MISSING

    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    for reason in MISSING.values():
        count = sum(reason in text for text in reasons)
        if count:
            terminalreporter.write_line(f"without a database: {count} tests skipped; {reason}")


def _place(item: pytest.Item) -> str:
    """Path of a test's file below `tests/`."""
    return item.path.relative_to(_TESTS).as_posix()


def _tier(item: pytest.Item) -> str:
    return _place(item).partition("/")[0]


def _turn(item: pytest.Item) -> int:
    if item.path.stem == _LONGEST:
        return -1
    tier = _tier(item)
    return _TIERS.index(tier) if tier in _TIERS else len(_TIERS)


@pytest.fixture(scope="session", autouse=True)
def _checkpoints_at_once() -> Iterator[None]:
    """No checkpoint is made beside a test: stores are copied, and what is counted must not vary."""

    def make_at_once(table: TableFolder, version: int, least_commits: int) -> None:
        checkpoints._make(
            checkpoints._Due(table.name, table.location, table.options, version, least_commits)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_writer, "checkpoint_soon", make_at_once)
        yield


@pytest.fixture(autouse=True)
def services_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a failing test leaves running would slow down every test after it."""
    running: list[ThreadHandle] = []
    begin = ThreadHandle.begin

    def noted(handle: ThreadHandle) -> None:
        running.append(handle)
        begin(handle)

    monkeypatch.setattr(ThreadHandle, "begin", noted)
    yield
    for handle in reversed(running):
        if handle.is_alive:
            handle.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table keeps the rows of small files, so damage is met by whoever reads next."""
    monkeypatch.setattr("txmq.delta.file_rows.SMALL_ROWS", -1)


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Never in the store's own folder, as the business's own data are not."""
    return Books(tmp_path / "books.sqlite")


@pytest.fixture
def delay_world(tmp_path: Path) -> Iterator[DelayWorld]:
    world = DelayWorld(tmp_path)
    yield world
    world.producer.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store")


@pytest.fixture
def empty(tmp_path: Path) -> HandMadeStore:
    """A store whose rows a test writes; it has none yet."""
    return HandMadeStore(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def clean_original(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    return clean_store(str(tmp_path_factory.mktemp("clean") / "store"))


@pytest.fixture
def clean(clean_original: HandMadeStore, tmp_path: Path) -> HandMadeStore:
    """A copy of `clean_store`, for its forty commits cost more than most tests."""
    return clean_original.copied_to(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def delayed_original(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    return delayed_store(str(tmp_path_factory.mktemp("delayed") / "store"))


@pytest.fixture
def with_delays(delayed_original: HandMadeStore, tmp_path: Path) -> HandMadeStore:
    """A copy of `delayed_store`."""
    return delayed_original.copied_to(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], databases.Server]]:
    """Real database servers; each is started for the first test that wants it."""
    from tests.kit import databases

    with ExitStack() as running:
        found: dict[str, databases.Server] = {}

        def server(dialect: str) -> databases.Server:
            if reason := databases.missing(dialect):
                pytest.skip(reason)
            if dialect not in found:
                found[dialect] = running.enter_context(databases.STARTS[dialect]())
            return found[dialect]

        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from txmq.spark.session import local_session

    session = local_session(for_minutes=True)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    """For the many small queries of a verification."""
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    spark.conf.set(SHUFFLE_PARTITIONS, "1")
    yield spark
    spark.conf.set(SHUFFLE_PARTITIONS, before)
