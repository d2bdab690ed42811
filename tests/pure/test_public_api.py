"""What `import txmq` offers, and what it costs: names, signatures, loaded modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import txmq
from tests.kit.public_api import lines

KNOWN = Path(__file__).with_name("public_api.txt")
HEAVY = ("deltalake", "numpy", "pandas", "pyarrow", "pyspark", "rich", "typer", "yaml")


def python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_names_and_signatures_are_the_known_ones() -> None:
    known = KNOWN.read_text(encoding="utf-8").splitlines()
    now = lines()

    assert set(known) - set(now) == set(), "gone or changed; see tests/kit/public_api.py"
    assert set(now) - set(known) == set(), "new; see tests/kit/public_api.py"


def test_every_name_can_be_had_and_is_listed() -> None:
    assert all(hasattr(txmq, name) for name in txmq.__all__)
    assert set(txmq.__all__) <= set(dir(txmq))
    assert set(txmq._homes()) == set(txmq.__all__)


def test_type_checkers_see_each_name_and_no_other() -> None:
    stub = Path(txmq.__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
    pattern = r"from (txmq[\w.]*) import (\w+) as \2"
    matches = [re.fullmatch(pattern, line) for line in stub if not line.startswith("#")]
    listed = {match[2]: match[1] for match in matches if match}

    assert len(listed) == len(matches)
    assert listed == txmq._homes()


def test_star_brings_all_names_and_no_other() -> None:
    names = python("from txmq import *; print(*[name for name in dir() if name != '__builtins__'])")

    assert {*names.split()} - set(txmq.__all__) <= {"__annotations__", "__doc__", "__file__",
        "__loader__", "__name__", "__package__", "__spec__"}  # fmt: skip
    assert set(txmq.__all__) <= {*names.split()}


def test_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Produser'"):
        _ = txmq.Produser


def test_import_loads_nothing_heavy() -> None:
    loaded = python("import sys, txmq; print(*sorted({m.split('.')[0] for m in sys.modules}))")

    assert set(loaded.split()).intersection(HEAVY) == set()


def test_import_of_a_producer_loads_neither_spark_nor_what_others_need() -> None:
    loaded = python("import sys; from txmq import TransactionProducer; print(*sys.modules)").split()

    rooms = ("check", "consumer", "maintenance", "ops", "publish", "testing", "verify.checker")
    unneeded = tuple(f"txmq.{room}" for room in rooms)
    assert [name for name in loaded if name.startswith(("pyspark", *unneeded))] == []


@pytest.mark.parametrize(
    "imports",
    [
        "import txmq, txmq.verify.checker",
        "import txmq.verify.report, txmq",
        "import txmq.verify, txmq",
    ],
)
def test_verify_is_the_function_whatever_is_imported_first(imports: str) -> None:
    assert python(f"{imports}; print(callable(txmq.verify))") == "True"
