from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.books import Books


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Never in the store's own folder, as the business's own data are not."""
    return Books(tmp_path / "books.sqlite")
