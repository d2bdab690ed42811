"""Large objects are written and read in pieces, and are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from txmq.delta.objects import PIECE_BYTES, Objects

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
