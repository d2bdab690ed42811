from __future__ import annotations

import errno
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.stores import fresh_store
from txmq.delta.folder import TableFolder
from txmq.errors import AccessDeniedError, ConfigError
from txmq.job import run_batch_job
from txmq.store.config import Config
from txmq.store.store import Store, create_store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store", Config(check_threads=7, transaction_check_max=3))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "txmq.yaml"
    path.write_text("check_threads: 8\n", encoding="utf-8")
    return path


def test_store_without_variables_has_its_own_settings(store: Store) -> None:
    assert open_store(store.location).config == store.config


def test_variable_comes_before_the_store_and_leaves_its_other_settings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_CHECK_THREADS", "2")

    opened = open_store(store.location)

    assert (opened.config.check_threads, opened.config.transaction_check_max) == (2, 3)
    assert Store.open(store.location).config == store.config


def test_variable_comes_before_a_file(
    store: Store, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_TRANSACTION_CHECK_MAX", "4")

    by_file = open_store(store.location, settings).config
    monkeypatch.setenv("TXMQ_CHECK_THREADS", "2")

    assert (by_file.check_threads, by_file.transaction_check_max) == (8, 4)
    assert open_store(store.location, settings).config.check_threads == 2


def test_new_store_keeps_what_file_and_variables_say(
    tmp_path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_HALF_QUEUES", "2")
    create_store(str(tmp_path / "new"), settings)
    monkeypatch.delenv("TXMQ_HALF_QUEUES")

    kept = Store.open(tmp_path / "new").config
    assert (kept.check_threads, kept.half_queues) == (8, 2)


def test_variable_cannot_change_what_is_fixed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_HALF_QUEUES", "2")

    with pytest.raises(ConfigError, match="half_queues is fixed at creation"):
        open_store(store.location)


def test_variable_says_what_is_fixed_where_the_file_leaves_it_out(
    tmp_path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_HALF_QUEUES", "2")
    create_store(str(tmp_path / "new"))

    config = open_store(str(tmp_path / "new"), settings).config

    assert (config.check_threads, config.half_queues) == (8, 2)


def test_misspelt_variable_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMQ_CHECK_THREDS", "2")

    with pytest.raises(ConfigError, match="did you mean check_threads"):
        create_store(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_job_takes_settings_from_variables(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMQ_CHECK_THREADS", "2")
    seen: list[int] = []

    class Seeing:
        def __init__(self, opened: Store) -> None:
            self.opened = opened

        def run_once(self) -> object:
            seen.append(self.opened.config.check_threads)
            return None

    assert run_batch_job("seeing", Seeing, [store.location]) == 0
    assert seen == [2]


def test_a_store_that_may_not_be_looked_into_is_not_said_to_be_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who believes that there is none makes one."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # So delta-rs answers in a folder that this process may not enter.
    monkeypatch.setattr(DeltaTable, "is_deltatable", lambda *_: False)
    monkeypatch.setattr(TableFolder, "look_up_commits", refuse)

    with pytest.raises(AccessDeniedError, match="state/config: cannot be read; check its rights"):
        Store.open(store.location)
