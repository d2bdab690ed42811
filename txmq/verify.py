"""The independent checker: do the tables keep what docs/invariants.md promises?

Shares no code with producer, settle or publish: it reads by itself and folds by itself, so one
mistake cannot hide in both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify_fates import Fates, fates_of, settled_disagreements
from txmq.verify_halves import Halves, halves_of
from txmq.verify_fold import COMMITTED, DISCARDED, EXPIRED, INCOMPLETE, PENDING, ROLLED_BACK, STATES
from txmq.verify_report import Findings, VerifyReport
from txmq.verify_tables import (
    CLAIM_COLUMNS,
    DIGEST,
    FACT_COLUMNS,
    HALF_COLUMNS,
    TOPIC_COLUMNS,
    PinnedStore,
    is_dead_letters,
    microseconds,
    plain_location,
)
