"""`txmq produce`, `message` and `recall`."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tests.kit.builders import table_versions
from tests.kit.reading import bodies, publish, rows_of, topic_rows
from txmq.message.message import Message
from txmq.ops.cli import messages as cli_messages
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace import TraceHook
from txmq.store.store import Store

ID = re.compile(r"[0-9a-f-]{36}:\d+")


def run(*arguments: str, text: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner().invoke(
        app, arguments, input=text, env={"TXMQ_LOCATION": None, "COLUMNS": "200", **environment}
    )


def produced(store: Store, *options: str, text: str | bytes | None = None) -> list[str]:
    result = run("produce", store.location, "paid", *options, text=text)
    assert result.exit_code == 0, result.output
    ids = result.stdout.split()
    assert all(ID.fullmatch(one) for one in ids)
    publish(store)
    return ids


def assert_refused(result: Result, text: str) -> None:
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


# --- produce --------------------------------------------------------------------------------------


def test_a_body_from_the_command_line_is_sent(store: Store) -> None:
    (own_id,) = produced(store, "--body", "hello")

    (row,) = topic_rows(store, "paid")
    assert (row["body"], row["message_id"]) == (b"hello", own_id)


def test_several_bodies_are_several_messages(store: Store) -> None:
    assert len(produced(store, "--body", "1", "--body", "2")) == 2
    assert bodies(store, "paid") == [b"1", b"2"]


def test_the_content_of_a_file_is_one_body(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"line 1\nline 2\n\xff")

    produced(store, "--file", str(file))

    assert bodies(store, "paid") == [b"line 1\nline 2\n\xff"]


def test_each_line_of_the_standard_input_is_a_body(store: Store) -> None:
    ids = produced(store, text=b"first\r\n\nlast \xff")

    assert len(ids) == 3
    assert bodies(store, "paid") == [b"", b"first", b"last \xff"]


def test_many_lines_are_sent_in_batches(store: Store) -> None:
    count = 2 * cli_messages.BATCH_MESSAGES + 1

    ids = produced(store, text="".join(f"{number}\n" for number in range(count)))

    assert len(set(ids)) == count
    assert len({own_id.partition(":")[0] for own_id in ids}) == 3


def test_all_fields_of_a_message_can_be_given(store: Store) -> None:
    produced(
        store, "--body", "1", "--key", "order-1", "--key", "customer-9", "--tag", "new",
        "--property", "a=1", "--property", "b==", "--sharding-key", "order-1", "--group", "orders",
    )  # fmt: skip

    (row,) = topic_rows(store, "paid")
    assert row["keys"] == "order-1 customer-9"
    assert row["tags"] == "new"
    assert dict(row["properties"]) == {"a": "1", "b": "="}
    assert row["sharding_key"] == "order-1"
    assert row["producer_group"] == "orders"


def test_a_queue_can_be_chosen(store: Store) -> None:
    produced(store, "--body", "1", "--queue-id", "5")

    assert topic_rows(store, "paid")[0]["queue_id"] == 5


@pytest.mark.parametrize(
    "delay",
    [("--delay-level", "18"), ("--delay-s", "3600"), ("--deliver-at", "2999-01-01T00:00:00Z")],
)
def test_a_message_can_be_delayed(store: Store, delay: tuple[str, str]) -> None:
    if delay[0] == "--deliver-at":
        assert_refused(run("produce", store.location, "paid", "--body", "1", *delay), "above")
        return
    produced(store, "--body", "1", *delay)

    assert store.topics() == ["SCHEDULE_TOPIC_XXXX"]


def test_a_namespace_can_be_given(store: Store) -> None:
    produced(store, "--body", "1", "--namespace", "tenant")

    assert bodies(store, "tenant.paid") == [b"1"]


def test_ids_can_be_json(store: Store) -> None:
    result = run("produce", store.location, "paid", "--body", "1", "--json")

    values = json.loads(result.stdout)
    assert values["count"] == 1
    assert ID.fullmatch(values["message_ids"][0])


def test_the_store_may_come_from_the_environment(store: Store) -> None:
    result = run("produce", "paid", "--body", "1", TXMQ_LOCATION=store.location)

    assert result.exit_code == 0
    assert_refused(run("produce", "paid", "--body", "1"), "TOPIC")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--property", "a"), "NAME=VALUE"),
        (("--property", "a=1", "--property", "a=2"), "given twice"),
        (("--deliver-at", "tomorrow"), "must be a time"),
        (("--deliver-at", "2026-07-01T12:00:00"), "no time zone"),
        (("--delay-level", "1", "--delay-s", "1"), "given more than once"),
        (("--key", "a b", "--key", "c"), "no space"),
        (("--queue-id", "99"), "queue_id"),
        (("--group", "a b"), "producer_group"),
        (("--namespace", "a.b"), "namespace"),
        (("--file", "nothing.bin"), "nothing.bin"),
    ],
)
def test_bad_options_are_refused_before_a_byte_is_written(
    store: Store, options: tuple[str, ...], said: str
) -> None:
    versions = table_versions(store)

    result = run("produce", store.location, "paid", *options, text="secret\n")

    assert_refused(result, said)
    assert "secret" not in result.output
    assert table_versions(store) == versions


def test_a_topic_of_txmq_itself_takes_no_messages(store: Store) -> None:
    result = run("produce", store.location, "RMQ_SYS_TRACE_TOPIC", "--body", "1")

    assert_refused(result, "reserved")


def test_what_is_acknowledged_before_an_error_is_told(store: Store) -> None:
    lines = ["ok\n"] * cli_messages.BATCH_MESSAGES + ["x" * (5 * 1024 * 1024)]

    result = run("produce", store.location, "paid", "--json", text="".join(lines))

    assert_refused(result, "limit")
    assert json.loads(result.stdout)["count"] == cli_messages.BATCH_MESSAGES


# --- message --------------------------------------------------------------------------------------


def test_a_message_is_shown_by_its_id(store: Store) -> None:
    (own_id,) = produced(store, "--body", "secret", "--key", "order-1")

    result = run("message", store.location, "--id", own_id)

    assert result.exit_code == 0
    assert f"{own_id}: visible" in result.stdout
    assert re.search(r"in paid\s+queue \d, offset 0", result.stdout)
    assert re.search(r"kind\s+ordinary", result.stdout)
    assert "1 message" in result.stdout
    assert "secret" not in result.stdout


def test_a_body_is_shown_on_request(store: Store) -> None:
    (own_id,) = produced(store, "--body", "secret")

    assert "secret" in run("message", store.location, "--id", own_id, "--body").stdout
    values = json.loads(run("message", store.location, "--id", own_id, "--body", "--json").stdout)
    assert values["messages"][0]["body"] == "secret"


def test_messages_are_shown_by_a_key(store: Store) -> None:
    produced(store, "--key", "order-1", text="1\n2\n3\n")

    result = run(
        "message", store.location, "--key", "order-1", "--topic", "paid", "--max-count", "2",
        "--json",
    )  # fmt: skip

    values = json.loads(result.stdout)
    assert values["count"] == 2
    assert "body" not in values["messages"][0]


def test_a_topic_in_a_namespace_is_named_in_two_ways(store: Store) -> None:
    produced(store, "--body", "1", "--key", "k", "--namespace", "tenant")

    for options in (("--topic", "tenant%paid"), ("--topic", "paid", "--namespace", "tenant")):
        result = run("message", store.location, "--key", "k", *options)
        assert "in tenant%paid" in result.stdout


def test_a_key_that_nobody_has_is_no_error(store: Store) -> None:
    produced(store, "--body", "1")

    result = run("message", store.location, "--key", "nothing")

    assert result.exit_code == 0
    assert "0 messages" in result.stdout


def test_messages_are_shown_by_their_transaction(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", b"1"))
        transaction.send(Message("stock", b"2"))
        transaction.prepare()

        result = run("message", store.location, "--transaction", transaction.id)

    assert f"{transaction.id}:0: half" in result.stdout
    assert f"{transaction.id}:1: half" in result.stdout
    assert "PENDING" in result.stdout


@pytest.mark.parametrize(
    "options", [(), ("--id", "x", "--key", "k"), ("--id", "x", "--topic", "t")]
)
def test_one_of_three_ways_to_look_is_given(store: Store, options: tuple[str, ...]) -> None:
    assert_refused(run("message", store.location, *options), "--")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--id", "x"), "'x' is no message id: it is TRANSACTION_ID:NUMBER, as a send returned it"),
        (("--transaction", "x"), "no half message"),
        (("--key", "k", "--topic", "paid"), "no table yet"),
        (("--key", "a b"), "one key"),
    ],
)
def test_what_cannot_be_found_is_one_line(
    store: Store, options: tuple[str, ...], said: str
) -> None:
    assert_refused(run("message", store.location, *options), said)


# --- recall ---------------------------------------------------------------------------------------


def test_a_delayed_message_is_recalled(store: Store) -> None:
    (own_id,) = produced(store, "--body", "1", "--delay-s", "3600")

    result = run("recall", store.location, own_id, "--group", "txmq-cli")

    assert result.exit_code == 0
    assert f"{own_id} is recalled" in result.stdout
    assert [row["kind"] for row in rows_of(f"{store.location}/op")].count("RECALL") == 1


def test_a_dry_run_says_what_a_recall_would_do_and_writes_nothing(store: Store) -> None:
    (own_id,) = produced(store, "--body", "1", "--delay-s", "3600", "--namespace", "ten")
    named = ("recall", store.location, own_id, "--namespace", "ten")
    before = table_versions(store)

    planned = run(*named, "--dry-run")

    assert planned.exit_code == 0
    assert f"{own_id} would be recalled; nothing was written" in planned.stdout
    assert table_versions(store) == before
    assert_refused(run("recall", store.location, own_id, "--dry-run"), "belongs to group")
    assert run(*named).exit_code == 0
    assert "is recalled already" in run(*named, "--dry-run").stdout


def test_a_message_of_another_group_is_not_recalled(store: Store) -> None:
    (own_id,) = produced(store, "--body", "1", "--delay-s", "3600")

    assert_refused(run("recall", store.location, own_id, "--group", "others"), "belongs to group")


def test_a_message_that_is_visible_is_not_recalled(store: Store) -> None:
    (own_id,) = produced(store, "--body", "1")

    assert_refused(run("recall", store.location, own_id), "cannot be recalled")


# --- terminals ------------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_while_ids_go_elsewhere(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = StringIO()

    def terminal(*, stderr: bool = False) -> Console:
        assert stderr
        return Console(file=told, force_terminal=True)

    monkeypatch.setattr(cli_messages, "console", terminal)

    ids = produced(store, text="1\n2\n")

    assert len(ids) == 2
    assert "2 messages" in told.getvalue()


def test_a_long_body_is_cut_on_a_terminal_and_whole_in_json(store: Store) -> None:
    body = "x" * (cli_messages.SHOWN_BODY_BYTES + 7)
    (own_id,) = produced(store, text=body)

    shown = run("message", store.location, "--id", own_id, "--body").stdout
    values = json.loads(run("message", store.location, "--id", own_id, "--body", "--json").stdout)

    assert "7 bytes more" in " ".join(shown.split())
    assert values["messages"][0]["body"] == body


def test_the_trace_of_a_message_is_shown(store: Store) -> None:
    with (
        TraceHook(store) as trace,
        TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer,
    ):
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", b"1"))
        transaction.prepare()
        transaction.rollback()
    publish(store)

    result = run("message", store.location, "--id", f"{transaction.id}:0")

    assert re.search(r"trace 1\s+Pub, ok", result.stdout)
    assert re.search(r"trace 2\s+EndTransaction, ok, asked ROLLBACK, is ROLLED_BACK", result.stdout)
