"""Which Spark session writes the table of a local transaction."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from txmq.user_data.s3_log_store import active_session

if TYPE_CHECKING:
    import pytest


def test_spark_that_another_thread_is_loading_has_no_session_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", ModuleType("pyspark.sql"))

    assert active_session() is None
