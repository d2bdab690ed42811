"""Fixtures of all tiers; `spark` is made on first use, so the unit tier never starts a JVM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.delayed import delayed_store
from tests.kit.class_archive import use_archive
from tests.stores import HandMadeStore, clean_store, fresh_store
from txmq.handles import ThreadHandle
from txmq.store.store import Store
from txmq.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests import databases

_TESTS = Path(__file__).parent
_TIERS = ("unit", "property", "contract", "integration", "scenario", "benchmark")
# The longest first, so that all workers end at about the same time.
_ORDER = ("scenario", "property", "integration", "contract", "benchmark", "unit")
# About half of the time that tests with Spark take.
_SECOND_JAVA = (
    "test_verify", "test_typed", "test_topic_streams", "test_retries", "test_delta_listener",
    "test_platform",
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
    if item.path.parent.parent == _TESTS and item.path.parent.name in _TIERS:
        item.add_marker(item.path.parent.name)
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("spark")
        # Java starts and warms up in two workers, and each module makes its stores once.
        is_second = item.path.name.startswith(_SECOND_JAVA)
        item.add_marker(pytest.mark.xdist_group("spark-2" if is_second else "spark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort them by tier."""
    items.sort(key=lambda item: _place(item.path.parent.name))


def _place(tier: str) -> int:
    return _ORDER.index(tier) if tier in _ORDER else len(_ORDER)


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
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store")


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
    from tests import databases

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
    from txmq.local_spark.session import local_session

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
