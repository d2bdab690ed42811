"""docs/security.md says what each role writes: it needs all of that, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.docs.role_process import GROUP, READERS, ROLES, TOPIC
from txmq import Broker, Config, Message, PullConsumer, Store, TransactionProducer

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "security.md"
NAMES = {"<group>": GROUP, "<consumer group>": READERS, "<topic>": TOPIC}


def written() -> dict[str, list[str]]:
    """The folders that each role writes, by the table of the page."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]*) \| ([^|]*) \|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    return {role: [_named(path) for path in re.findall(r"`([^`]+)`", cell)]
            for role, _, cell in rows if role in ROLES}  # fmt: skip


def _named(path: str) -> str:
    for placeholder, name in NAMES.items():
        path = path.replace(placeholder, name)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("roles") / "store")


def filled(location: Path) -> Path:
    """A store in which each role has something to do."""
    # The broker writes into op when something is due that it has not looked at.
    store = Store.create(
        location, Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"visible"), Message(TOPIC, b"visible too")])
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"open"))
        transaction.prepare()
    Broker(store).run_once()
    with PullConsumer(store, consumer_group=READERS, topics={TOPIC: "*"}):
        pass
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send(Message(TOPIC, b"not yet visible"))
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"open, and not looked at"))
        transaction.prepare()
    return Path(store.location)


@pytest.fixture
def store(tmp_path: Path, original: Path) -> Iterator[Path]:
    location = tmp_path / "store"
    shutil.copytree(original, location)
    yield location
    set_rights(location, 0o200)


def set_rights(path: Path, write: int) -> None:
    for root, folders, files in os.walk(path):
        for name in (".", *folders, *files):
            entry = Path(root, name)
            mode = entry.stat().st_mode
            entry.chmod((mode | 0o700 if entry.is_dir() else mode | 0o600) & ~0o222 | write)


def run(role: str, store: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.process.docs.role_process", role, str(store)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
    )
    if done.stderr.startswith("capset"):
        pytest.skip("this machine lets no root give up its rights")
    return done


def test_page_has_each_role() -> None:
    assert set(written()) == set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_role_needs_no_more_than_the_page_says(store: Path, role: str) -> None:
    for path in written()[role]:
        (store / path).mkdir(parents=True, exist_ok=True)
    set_rights(store, 0)
    for path in written()[role]:
        set_rights(store / path, 0o200)

    done = run(role, store)

    assert done.returncode == 0, done.stderr[-2000:]


# Maintenance writes half when there is something to merge or to retire, and removes renewals of
# producers that are gone. A producer renews what is open for a second; without the right it warns,
# and is asked (tests/tables/check/test_renewals.py).
LATER = {("broker", "half")} | {(role, "renewals") for role in written()}
NEEDED = [(role, path) for role, paths in written().items() for path in paths
          if (role, path) not in LATER]  # fmt: skip


@pytest.mark.parametrize(("role", "path"), NEEDED)
def test_role_needs_each_folder_that_the_page_names(store: Path, role: str, path: str) -> None:
    (store / path).mkdir(parents=True, exist_ok=True)
    set_rights(store / path, 0)

    assert run(role, store).returncode != 0
