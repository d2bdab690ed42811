from __future__ import annotations

import shutil
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.builders import halves, ids, op_row, table_versions, transaction_id
from txmq.errors import (
    ConfigError,
    InvalidNameError,
    StorageError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    TopicNotFoundError,
    TxmqError,
)
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock

# --- creating and opening ---------------------------------------------------------------------


def test_new_store_has_its_tables_and_no_topic(store: Store) -> None:
    assert set(table_versions(store)) == {
        "half", "op", "settled", "state/config", "state/publisher", "state/check_lease",
            "state/maintenance",
    }  # fmt: skip
    assert store.topics() == []


def test_store_is_opened_with_the_settings_it_was_made_with(tmp_path: Path) -> None:
    config = Config(transaction_check_max=3, groups={"orders": {"check_threads": 2}})
    Store.create(tmp_path / "store", config)

    assert Store.open(tmp_path / "store").config == config


def test_process_may_have_settings_of_its_own(tmp_path: Path) -> None:
    Store.create(tmp_path / "store", Config(check_threads=2))

    assert Store.open(tmp_path / "store", Config(check_threads=3)).config.check_threads == 3
    assert Store.open(tmp_path / "store").config.check_threads == 2


def test_what_is_fixed_at_creation_cannot_be_given_otherwise(tmp_path: Path) -> None:
    Store.create(tmp_path / "store", Config(half_queues=2))

    with pytest.raises(ConfigError, match="half_queues is fixed at creation"):
        Store.open(tmp_path / "store", Config(half_queues=3))


def test_store_is_not_made_twice(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(check_threads=2))
    before = table_versions(store)

    with pytest.raises(StoreExistsError):
        Store.create(tmp_path / "store", Config(check_threads=3))

    assert table_versions(store) == before
    assert Store.open(tmp_path / "store").config.check_threads == 2


def test_creation_that_was_broken_off_can_be_taken_up_again(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "state" / "config")
    half_id = store.tables.half_log().table.log.table_id

    again = Store.create(tmp_path / "store")

    assert again.tables.half_log().table.log.table_id == half_id
    assert Store.open(tmp_path / "store").config == Config()


def test_store_that_was_not_made_to_its_end_is_not_opened(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "state" / "config")
    store.tables.register("config").table.writer.create(checkpoint_interval=10)

    with pytest.raises(StoreFormatError, match="create it again"):
        Store.open(tmp_path / "store")


@pytest.fixture
def overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where another process is faster than whoever makes a store next."""
    location = tmp_path / "store"
    keep = Store._keep_settings

    def keep_too_late(self: Store, *arguments: object) -> None:
        monkeypatch.setattr(Store, "_keep_settings", keep)
        Store.create(location, Config(check_threads=2))
        keep(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_keep_settings", keep_too_late)
    return location


def test_creator_that_was_overtaken_changes_nothing(overtaken: Path) -> None:
    location = overtaken
    with pytest.raises(StoreExistsError):
        Store.create(location, Config(check_threads=3))

    assert Store.open(location).config.check_threads == 2


def test_program_that_runs_again_opens_the_store_that_it_made(tmp_path: Path) -> None:
    made = Store.open_or_create(tmp_path / "store", Config(check_threads=2))
    before = table_versions(made)

    again = Store.open_or_create(tmp_path / "store")

    assert again.config.check_threads == 2
    assert table_versions(again) == before


def test_settings_of_a_later_start_act_in_its_process_only(tmp_path: Path) -> None:
    Store.open_or_create(tmp_path / "store", Config(check_threads=2))

    assert (
        Store.open_or_create(tmp_path / "store", Config(check_threads=3)).config.check_threads == 3
    )
    assert Store.open(tmp_path / "store").config.check_threads == 2


def test_creation_that_was_broken_off_is_completed_at_the_next_start(tmp_path: Path) -> None:
    Store.create(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "state" / "config")

    Store.open_or_create(tmp_path / "store", Config(check_threads=2))

    assert Store.open(tmp_path / "store").config.check_threads == 2


def test_first_start_that_was_overtaken_opens_the_store_of_the_other(overtaken: Path) -> None:
    assert Store.open_or_create(overtaken).config.check_threads == 2


def test_store_that_lost_its_settings_is_not_given_others(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"42"))
    shutil.rmtree(Path(store.location) / "state" / "config")

    for make in (Store.create, Store.open_or_create):
        with pytest.raises(StoreFormatError, match="restore state/config"):
            make(store.location)


@pytest.mark.parametrize("make", [Store.open, Store.create, Store.open_or_create])
def test_settings_whose_commit_lost_its_content_are_not_replaced(
    store: Store, make: Callable[[str], Store]
) -> None:
    config = store.tables.register("config").table
    newest = Path(config.location, "_delta_log", f"{config.refresh().version:020d}.json")
    newest.write_bytes(b"")

    with pytest.raises(StoreFormatError, match="is empty"):
        make(store.location)

    assert newest.read_bytes() == b""


def test_settings_that_cannot_be_read_are_not_replaced(store: Store) -> None:
    config = store.tables.register("config")
    config.swap(config.read(), {"strange": True}, START_MS)

    with pytest.raises(TxmqError):
        Store.open_or_create(store.location)

    assert config.read().value == {"strange": True}


def test_nothing_at_the_location_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        Store.open(tmp_path / "absent")

    assert list(tmp_path.iterdir()) == []


def test_delta_table_of_somebody_else_is_no_store(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "table"), pa.table({"a": [1]}))

    with pytest.raises(StoreNotFoundError):
        Store.open(tmp_path / "table")


def test_settings_of_somebody_else_are_no_store(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "s" / "state" / "config"), pa.table({"a": [1]}))

    with pytest.raises(StoreFormatError):
        Store.open(tmp_path / "s")


def test_file_at_the_location_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(StorageError):
        Store.create(tmp_path / "file")
    with pytest.raises(StorageError):
        Store.open(tmp_path / "file")


def test_time_of_creation_is_that_of_the_clock(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", clock=ManualClock(START_MS))
    table = store.tables.register("config").table

    written = table.rows.read(table.files.all(), ["updated_timestamp"]).to_pylist()

    assert written[0]["updated_timestamp"].timestamp() * 1000 == START_MS


# --- locations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "two words",
        "ünï-тема-店",
        "a+b&c=d;e",
        "hash#mark",
        "what?",
        "a:b",
        "it's",
        "{x}",
        "~z",
        "$w*",
    ],
)
def test_store_works_wherever_it_is(tmp_path: Path, name: str) -> None:
    store = Store.create(tmp_path / name)
    store.tables.create_topic("orders")
    store.tables.half_log().table.writer.append(halves(1), app_id="a", number=1)
    store.tables.op_log().append([op_row(1)], 0, app_id="a", number=1)

    opened = Store.open(str(tmp_path / name))

    assert opened.location == str(tmp_path / name)
    assert opened.topics() == ["orders"]
    assert opened.tables.half_log().rows(ids(transaction_id(1))).num_rows == 1
    assert opened.tables.op_log().between(0, 1).num_rows == 1
    assert opened.tables.op_log().table.folder.commit_bytes(1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "spelling",
    [
        "{path}", "{path}/", "{path}//", "file:{path}", "file://{path}", "file://{path}/",
        "FILE://{path}", "file://localhost{path}", "{path}/../store", "{path}/./", "//{path}",
    ],
)  # fmt: skip
def test_one_store_has_one_name(store: Store, spelling: str) -> None:
    assert Store.open(spelling.format(path=store.location)).location == store.location


def test_percent_encoded_file_uri_is_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "two words ü"

    store = Store.create(folder.as_uri())

    assert "%" in folder.as_uri()
    assert store.location == str(folder)
    assert Store.open(folder).location == str(folder)


def test_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.create("here/store")

    monkeypatch.chdir("/")

    assert store.location == str(tmp_path / "here" / "store")
    assert store.tables.op_log().table.version == 0


def test_link_and_its_target_are_one_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.location)

    assert Store.open(tmp_path / "link").location == store.location
    with pytest.raises(StoreExistsError):
        Store.create(tmp_path / "link")


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3://bucket/folder/", "s3://bucket/folder"),
        ("s3a://bucket", "s3a://bucket"),
        ("abfss://container@account.dfs.core.windows.net/a b", None),
    ],
)
def test_object_store_uri_is_kept_without_its_last_slash(location: str, name: str | None) -> None:
    from txmq.store.tables import plain_location

    assert plain_location(location) == (name or location)


@pytest.mark.parametrize(
    "location",
    [
        "", "  ", None, 1, b"/x", ["x"], "file:", "file://host/x", "s3://", "s3:///", "dbfs:/x",
        "/a%b", "/a%20b", "file:///a%25b", "file:///a%00b", "a\\b", "/a\nb", "/a\x00b", "/a\ud800b",
        "~", "~/store", "s3://b/a%20b", "/a[b", "/a]b", "/a^b", "/a|b",
    ],
    ids=ascii,
)  # fmt: skip
@pytest.mark.parametrize("call", [Store.create, Store.open])
def test_location_that_readers_would_not_agree_on_is_refused(
    call: Callable[[Any], Store], location: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="location"):
        call(location)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [Store.create, Store.open])
def test_scheme_that_nobody_knows_is_refused_with_those_that_are(
    call: Callable[[Any], Store],
) -> None:
    with pytest.raises(ConfigError, match=r"foo://.*cannot use; known are s3, s3a, abfss"):
        call("foo://bucket/store")


def test_file_is_no_place_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")

    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StorageError, match="file is a file; give a folder"):
            Store.create(place)


# --- topics -----------------------------------------------------------------------------------


def test_topics_are_listed_in_order(store: Store) -> None:
    for name in ("b", "a", "RETRY_group"):
        store.tables.create_topic(name)

    assert store.topics() == ["RETRY_group", "a", "b"]


def test_creating_a_topic_again_keeps_it(store: Store) -> None:
    store.tables.create_topic("orders")
    before = table_versions(store)

    store.tables.create_topic("orders")

    assert table_versions(store) == before


def test_only_tables_are_topics(store: Store) -> None:
    store.tables.create_topic("orders")
    folder = Path(store.location, "topics")
    (folder / ".DS_Store").write_text("x")
    (folder / "README").write_text("x")
    (folder / "empty").mkdir()

    assert store.topics() == ["orders"]


def test_location_of_a_topic_is_a_delta_table(store: Store) -> None:
    store.tables.create_topic("orders")

    assert Path(store.topic_location("orders"), "_delta_log").is_dir()


def test_topic_without_a_table_says_when_it_will_have_one(store: Store) -> None:
    with pytest.raises(TopicNotFoundError, match="first message that was committed"):
        store.topic_location("orders")


@pytest.mark.parametrize("name", ["../half", "a/b", "", "_delta_log", "a%2Fb", None])
@pytest.mark.parametrize("method", ["tables.create_topic", "topic_location"])
def test_name_of_a_topic_never_leaves_its_folder(store: Store, method: str, name: object) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidNameError):
        attrgetter(method)(store)(name)

    assert table_versions(store) == before


# --- the rest ---------------------------------------------------------------------------------


def test_handles_are_not_shared(store: Store) -> None:
    assert store.tables.op_log().table is not store.tables.op_log().table


def test_checkpoints_are_no_tables_of_the_store(store: Store) -> None:
    location = store.checkpoint_location("publisher")

    assert location.startswith(store.location)
    assert not any(location.endswith(name) for name in table_versions(store))


def test_number_of_tries_is_that_of_the_settings(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(commit_attempts=3))

    assert store.tables.op_log().table.writer._attempts == 3


@pytest.mark.parametrize("name", ["main.txmq", "main.shop.txmq"])
def test_name_of_a_catalog_is_refused_and_makes_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="catalog"):
        Store.create(name)

    assert not list(tmp_path.iterdir())
