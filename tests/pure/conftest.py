"""Tests of this tier open no table; whoever does belongs into `tests/tables`."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable


@pytest.fixture(autouse=True)
def no_table_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("opens a Delta table; move this test to tests/tables")

    monkeypatch.setattr(DeltaTable, "__init__", refused)
    monkeypatch.setattr(DeltaTable, "create", refused)
