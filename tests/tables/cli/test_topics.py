"""`txmq topics …` and `txmq rebuild-topic`: what they print and their exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.kit.bodies import ORDER
from tests.kit.builders import table_versions
from tests.kit.planted import Filled, Vandal, filled
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind, TopicSettings

TOPIC = "orders"

ORDERS = {"encoding": "json", "schema": ORDER}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled(str(tmp_path_factory.mktemp("cli-topics") / "store"))


@pytest.fixture
def made(original: Filled, tmp_path: Path) -> Filled:
    shutil.copytree(original.location, tmp_path / "store")
    return Filled(str(tmp_path / "store"), original.ids)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None, **environment})


def told(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_topic_is_created_with_its_settings(store: Store, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(ORDERS), encoding="utf-8")

    result = run(
        "topics", "create", store.location, TOPIC, "--kind", "TRANSACTION", "--queues", "3",
        "--reserved-time-h", "24", "--body", str(body),
    )  # fmt: skip

    assert result.exit_code == 0
    assert "TRANSACTION" in result.stdout
    assert "24 h" in result.stdout
    settings = Topics(store).describe(TOPIC).summary.settings
    assert settings == TopicSettings(TopicKind.TRANSACTION, 3, 24.0, ORDERS)


def test_store_may_come_from_the_environment(store: Store) -> None:
    result = run("topics", "create", TOPIC, TXMQ_LOCATION=store.location)

    assert result.exit_code == 0
    assert store.topics() == [TOPIC]


def test_settings_as_json(store: Store) -> None:
    assert told("topics", "create", store.location, TOPIC, "--queues", "2") == {
        "topic": TOPIC, "kind": "UNSPECIFIED", "queue_nums": 2, "reserved_time_h": None,
        "body": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_body_that_is_no_json_object_is_one_clean_line(
    store: Store, tmp_path: Path, text: str | None
) -> None:
    body = tmp_path / "body.json"
    if text is not None:
        body.write_text(text, encoding="utf-8")

    result = run("topics", "create", store.location, TOPIC, "--body", str(body))

    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert store.topics() == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_body_schema_of_a_windows_editor_is_read(
    store: Store, tmp_path: Path, encoding: str
) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(ORDERS), encoding=encoding)

    result = run("topics", "create", store.location, TOPIC, "--body", str(body))

    assert result.exit_code == 0, result.output
    assert Topics(store).describe(TOPIC).summary.settings.body == ORDERS


def test_a_body_schema_that_is_no_json_is_told_with_line_and_column(
    store: Store, tmp_path: Path
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{\n  "type": record}', encoding="utf-8")

    result = run("topics", "create", store.location, TOPIC, "--body", str(body))

    assert f"{body} is no JSON: line 2, column 11" in result.stderr


def test_list_shows_every_topic(made: Filled) -> None:
    Topics(made.store).create("empty", reserved_time_h=0.5)

    result = run("topics", "list", made.location)
    found = {one["topic"]: one for one in told("topics", "list", made.location)["topics"]}

    assert set(found) == {*made.store.topics()}
    assert found["empty"]["rows"] == 0
    assert found["paid"]["rows"] > 0
    for name in found:
        assert name in result.stdout
    assert f"{len(found)} topics" in result.stdout


def test_description_shows_queues_and_times(made: Filled) -> None:
    result = run("topics", "describe", made.location, "paid")
    found = told("topics", "describe", made.location, "paid")

    assert "next offset" in result.stdout
    assert "made by its first message" in result.stdout
    assert found["next_offsets"] == {"0": found["rows"]}
    assert found["oldest"] <= found["newest"]


def test_alter_changes_what_is_given(store: Store) -> None:
    Topics(store).create(TOPIC, kind=TopicKind.FIFO, queue_nums=2, reserved_time_h=1, body=ORDERS)

    run("topics", "alter", store.location, TOPIC, "--queues", "4")
    run("topics", "alter", store.location, TOPIC, "--for-ever", "--any-body")

    settings = Topics(store).describe(TOPIC).summary.settings
    assert settings == TopicSettings(TopicKind.FIFO, 4)


def test_alter_makes_a_topic_read_only_and_writable_again(store: Store) -> None:
    run("topics", "create", store.location, TOPIC)

    made = run("topics", "alter", store.location, TOPIC, "--read-only")
    assert "refused: read-only" in made.stdout
    assert "read-only" in run("topics", "list", store.location).stdout
    run("topics", "alter", store.location, TOPIC, "--queues", "9")
    assert Topics(store).describe(TOPIC).summary.settings.is_read_only
    assert "taken" in run("topics", "alter", store.location, TOPIC, "--writable").stdout


def test_alter_to_fewer_queues_says_why_it_needs_force(store: Store) -> None:
    Topics(store).create(TOPIC, queue_nums=2)

    refused = run("topics", "alter", store.location, TOPIC, "--queues", "1")

    assert refused.exit_code == 2
    assert "get no new ones" in refused.stderr
    assert run("topics", "alter", store.location, TOPIC, "--queues", "1", "--force").exit_code == 0


def test_contrary_options_are_refused(store: Store) -> None:
    Topics(store).create(TOPIC)

    result = run("topics", "alter", store.location, TOPIC, "--for-ever", "--reserved-time-h", "1")

    assert result.exit_code == 2
    assert "give one of both" in result.stderr


def test_delete_is_dry_without_apply(made: Filled) -> None:
    Topics(made.store).create("empty")
    before = table_versions(made.store)

    result = run("topics", "delete", made.location, "empty")

    assert "dry run" in result.stdout
    assert table_versions(made.store) == before
    assert told("topics", "delete", made.location, "empty", "--apply")["is_written"]
    assert "empty" not in made.store.topics()


def test_delete_of_a_topic_in_use_is_one_clean_line(made: Filled) -> None:
    result = run("topics", "delete", made.location, "paid", "--apply")

    assert result.exit_code == 2
    assert "open, set aside or not published" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_rebuild_shows_what_is_wrong_and_sets_it_right(made: Filled) -> None:
    Vandal(made.location).lose(made.ids["plain_once"], "paid")
    before = table_versions(made.store)

    dry = run("rebuild-topic", made.location, "paid")
    assert dry.exit_code == 0
    assert "dry run" in dry.stdout
    assert table_versions(made.store) == before

    found = told("rebuild-topic", made.location, "paid", "--apply")
    assert (found["missing"], found["is_written"]) == (1, True)
    assert "nothing is wrong" in run("rebuild-topic", made.location, "paid").stdout


def test_unknown_topic_is_one_clean_line(store: Store) -> None:
    for command in (["topics", "describe"], ["topics", "delete"], ["rebuild-topic"]):
        result = run(*command, store.location, TOPIC)
        assert result.exit_code == 2
        assert "is not there" in result.stderr
