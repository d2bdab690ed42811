"""How old the transactions are that a listener is asked about."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from txmq.clock import Clock


def ages_s(heads: pa.Table, clock: Clock) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds since each was born, by a producer's clock and ours."""
    born_us = heads["born_timestamp"].cast(pa.int64()).to_numpy()
    return np.asarray(clock.now_ms() / 1000 - born_us / 1e6, dtype=np.float64)
