"""Large objects are written and read in pieces, and are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from txmq.delta.folder import PIECE_BYTES, UNFINISHED, Objects

LARGE_BYTES = 2 * PIECE_BYTES + 7


def pieces(content: bytes, *, ends: bool = True) -> Iterator[bytes]:
    for begin in range(0, len(content), PIECE_BYTES):
        yield content[begin : begin + PIECE_BYTES]
    if not ends:
        raise ValueError("the source broke off")


@pytest.mark.parametrize("size", [0, 5, LARGE_BYTES])
def test_what_is_written_in_pieces_is_read_in_pieces(tmp_path: Path, size: int) -> None:
    objects, content = Objects(str(tmp_path), {}), os.urandom(size)

    objects.put_pieces("one", pieces(content), len(content))
    # A copy is fetched while it is written.
    objects.put_pieces("two", objects.pieces("one"), len(content))

    assert b"".join(objects.pieces("two")) == content
    assert objects.sizes() == {"one": len(content), "two": len(content)}


@pytest.mark.parametrize("size", [5, LARGE_BYTES])
def test_nothing_is_there_of_what_breaks_off(tmp_path: Path, size: int) -> None:
    objects, content = Objects(str(tmp_path), {}), os.urandom(size)

    with pytest.raises(ValueError, match="broke off"):
        objects.put_pieces("one", pieces(content, ends=False), len(content))

    assert objects.is_empty()


@pytest.mark.parametrize("size", [5, LARGE_BYTES])
def test_what_a_kill_would_leave_is_in_the_listing(tmp_path: Path, size: int) -> None:
    objects, seen = Objects(str(tmp_path), {}), []

    def watched() -> Iterator[bytes]:
        for piece in pieces(os.urandom(size)):
            yield piece
            seen.append({path.name for path in (tmp_path / "half").iterdir()})
            assert {path.rpartition("/")[2] for path in objects.sizes()} == seen[-1]

    objects.put_pieces("half/one", watched(), size)

    assert all(name.endswith(UNFINISHED) for names in seen for name in names)
    assert seen[-1]
    assert list(objects.sizes()) == ["half/one"]


def test_a_file_that_is_taken_away_while_it_is_written_is_no_source_that_is_gone(
    tmp_path: Path,
) -> None:
    def taken() -> Iterator[bytes]:
        yield b"1"
        for path in tmp_path.iterdir():
            path.unlink()

    with pytest.raises(OSError, match="removed while it was written") as raised:
        Objects(str(tmp_path), {}).put_pieces("one", taken(), 1)
    assert not isinstance(raised.value, FileNotFoundError)
