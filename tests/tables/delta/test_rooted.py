"""A path in a table's log leads to no file outside of the table."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.kit.check_world import COMMIT, GROUP, CheckWorld
from tests.kit.reading import rows_of
from txmq.check.recheck import RecheckJob
from txmq.delta.folder import inside, rooted_filesystem
from txmq.delta.log_files import clean_log
from txmq.errors import StoreFormatError, TxmqError
from txmq.message.lifecycle import ClaimKind
from txmq.ops.admin.doctor import Doctor
from txmq.publish.publisher import Publisher
from txmq.verify import verify

LEADING_OUT = [
    "../a", "a/../../b", "a/..", "./a", "/etc/passwd", "file:///etc/passwd", "s3://bucket/a",
    "http://169.254.169.254/a", "C:/a", "..\\a", "a\\b", "%2e%2e/a", "..%2Fa", "a%5Cb",
    "a\nb", "a\x00b",
]  # fmt: skip
STAYING = ["part-1.snappy.parquet", "a=b/part-1.parquet", "a b/%20c.parquet", "..a/b..", "a:b/c"]


@pytest.mark.parametrize("path", LEADING_OUT)
def test_path_that_leads_out_is_refused_by_each_call(tmp_path: Path, path: str) -> None:
    folder = rooted_filesystem(str(tmp_path), {})

    calls = (
        folder.open_input_file, folder.open_input_stream, folder.open_output_stream,
        folder.delete_file, folder.delete_dir, folder.get_file_info,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(StoreFormatError, match="leads out of the folder"):
            call(path)
    with pytest.raises(StoreFormatError, match="leads out of the folder"):
        folder.get_file_info(["a", path])
    with pytest.raises(StoreFormatError, match="leads out of the folder"):
        folder.move("a", path)


@pytest.mark.parametrize("path", STAYING)
def test_path_that_stays_is_taken_as_it_is(path: str) -> None:
    assert inside(path) == path


@pytest.fixture
def secret(tmp_path: Path) -> tuple[CheckWorld, str]:
    """Another store with a transaction that nobody committed."""
    world = CheckWorld(tmp_path / "other")
    (transaction_id,) = world.prepare(1)
    return world, transaction_id


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path / "mine")


def add_foreign_file(world: CheckWorld, other: CheckWorld, form: str) -> None:
    """A commit to the half log of `world` that names a file of the half log of `other`."""
    (file,) = other.store.tables.half_log().table.files.all()
    target = Path(other.store.location, "half", file.path)
    path = form.format(
        relative=f"../../../other/store/half/{file.path}", absolute=target,
        quoted=quote(f"../../../other/store/half/{file.path}", safe=""),
    )  # fmt: skip
    log = Path(other.store.location, "half", "_delta_log")
    lines = [json.loads(line) for line in (log / f"{1:020d}.json").read_text("utf-8").splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = path
    commit = Path(world.store.location, "half", "_delta_log", f"{1:020d}.json")
    commit.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


FORMS = ["{relative}", "{quoted}", "{absolute}", "file://{absolute}", "./{relative}"]


@pytest.mark.parametrize("form", FORMS)
def test_file_of_another_place_is_neither_published_nor_shown_to_a_listener(
    world: CheckWorld, secret: tuple[CheckWorld, str], form: str
) -> None:
    other, transaction_id = secret
    add_foreign_file(world, other, form)
    listener = world.listener(COMMIT)
    world.clock.advance(60)

    with suppress(TxmqError):
        RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock).run_once()
    world.claim([transaction_id], ClaimKind.COMMIT)
    with suppress(TxmqError):
        Publisher(world.store, clock=world.clock).run_once()

    assert listener.asked() == []
    assert rows_of(f"{world.store.location}/topics/paid") == []
    (finding,) = [one for one in Doctor(world.store).examine().findings if one.where == "half"]
    assert "leads out" in finding.problem


def test_verify_reports_a_path_that_leads_out_and_does_not_follow_it(
    world: CheckWorld, secret: tuple[CheckWorld, str]
) -> None:
    other, _ = secret
    add_foreign_file(world, other, "{relative}")

    report = verify(world.store.location)
    broken = {result.invariant for result in report.results if result.violation_count}
    assert (broken, report.counts["transactions"]) == ({"I26"}, 0)


@pytest.mark.parametrize("form", ["../../{name}", "..%2F..%2F{name}", "{absolute}"])
def test_cleaning_a_log_deletes_no_file_of_another_place(
    world: CheckWorld, tmp_path: Path, form: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    table = world.store.tables.half_log().table
    world.prepare(1)
    path = form.format(name=f"../{precious.name}", absolute=precious)
    remove = {"path": path, "dataChange": True, "deletionTimestamp": 1}
    commit = Path(table.location, "_delta_log", f"{2:020d}.json")
    commit.write_text(json.dumps({"remove": remove}), encoding="utf-8")
    world.prepare(1)
    table.refresh().writer.checkpoint()

    with suppress(StoreFormatError):
        clean_log(table, table.version)

    assert precious.read_text("utf-8") == "mine"
