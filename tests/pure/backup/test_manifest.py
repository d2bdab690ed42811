"""The manifest of a backup: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from txmq.errors import BackupError
from txmq.ops.backup.manifest import CopiedFile, CopiedTable, Manifest

NAMES = some.from_regex(r"[a-z]{1,9}(=[0-9-]{1,9})?(/[a-z0-9-]{1,9}\.parquet)?", fullmatch=True)
FILES = some.dictionaries(
    NAMES,
    some.builds(CopiedFile, some.integers(0, 2**40), some.text("0123456789abcdef")),
    max_size=5,
)
TABLES = some.builds(CopiedTable, some.text(max_size=9), some.integers(0), some.just("2"), FILES)
MANIFESTS = some.builds(
    Manifest,
    some.text(max_size=9),
    some.text(max_size=9),
    some.text(max_size=9),
    some.text(max_size=9),
    some.fixed_dictionaries({"op": TABLES}, optional={"topics/paid": TABLES}),
    some.tuples(some.text(max_size=9)),
    some.just(()),
)
FILE = CopiedFile(3, "ab")
ONE = Manifest("0", "/store", "a", "b", {"op": CopiedTable("id", 1, "2", {"x.parquet": FILE})})


@given(MANIFESTS)
def test_what_was_written_is_read(manifest: Manifest) -> None:
    assert Manifest.parse(manifest.to_json(), "place") == manifest
    assert manifest.size_bytes == sum(file.size_bytes for _, file in manifest.files())


@given(some.data())
def test_a_part_of_it_is_no_manifest(data: some.DataObject) -> None:
    content = ONE.to_json()
    cut = data.draw(some.integers(0, len(content) - 1))

    with pytest.raises(BackupError, match="place"):
        Manifest.parse(content[:cut], "place")


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(ONE.to_json()), **values}).encode()


def of_files(files: list[Any]) -> dict[str, Any]:
    return {"id": "x", "version": 1, "schema_version": "2", "files": files}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed(format=2), "newer"),
        (changed(files=2), "damaged"),
        (changed(tables={}), "damaged"),
        (changed(tables=[]), "damaged"),
        (changed(tables={"op": of_files([["a"]])}), "damaged"),
        (changed(tables={"op": of_files([["../../evil", 1, "a"]])}), "damaged"),
        (b"[]", "damaged"),
    ],
)  # fmt: skip
def test_what_is_damaged_strange_or_newer_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(BackupError, match=said):
        Manifest.parse(content, "place")
