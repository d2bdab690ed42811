"""What a count keeps of many rows is small."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa

from txmq.ops.dashboard.snapshot import counts_of

ROWS, KEPT_BYTES = 200_000, 100_000


def test_states_are_counted_without_an_object_for_each_row() -> None:
    states = pa.chunked_array([["PENDING"] * ROWS, ["DISCARDED", "PENDING"]])
    counts_of(states)
    tracemalloc.start()
    try:
        counts = counts_of(states)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert counts == {"PENDING": ROWS + 1, "DISCARDED": 1}
    assert peak_bytes < KEPT_BYTES
    assert counts_of(pa.chunked_array([], pa.string())) == {}
