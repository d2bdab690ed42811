"""What txmq imports, setup.cfg declares; an empty environment has nothing else."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
# These parts come with an extra, and say so where it is missing.
EXTRAS = (
    "spark", "demo", "avro", "database", "http", "java", "metrics", "otel", "pydantic", "trace",
    "dashboard", "databricks", "encryption", "testing",
)  # fmt: skip
# Spark's own classes are their base: whoever calls `register_data_source` has a session of it.
OF_SPARK = ("data_source.py", "topic_slices.py", "topic_stream.py", "topic_writer.py")
# Delta's Python package is a part of delta-spark; a driver is the user's own.
DRIVERS = {"psycopg", "pymysql"}


def declared(*sections: str) -> set[str]:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = [settings["options"]["install_requires"]]
    lines += [settings["options.extras_require"].get(section, "") for section in sections]
    names = re.findall(r"^([A-Za-z0-9_.-]+)", "\n".join(lines), re.MULTILINE)
    return {name.lower() for name in names}


def imported(path: Path, *, at_start: bool) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if at_start else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def undeclared(known: set[str], *, at_start: bool) -> dict[str, str]:
    owners = packages_distributions()
    missing = {}
    optional = {*(ROOT / "txmq" / "testing").rglob("*.py")}
    optional |= {ROOT / "txmq" / "spark" / name for name in OF_SPARK}
    for path in (ROOT / "txmq").rglob("*.py"):
        if at_start and path in optional:
            continue
        for module in imported(path, at_start=at_start):
            top = module.partition(".")[0]
            if top == "txmq" or top in sys.stdlib_module_names or top in DRIVERS:
                continue
            if not known.intersection(name.lower() for name in owners.get(top, [top])):
                missing[top] = path.relative_to(ROOT).as_posix()
    return missing


def test_modules_need_at_their_start_only_what_every_installation_has() -> None:
    assert undeclared(declared(), at_start=True) == {}


def test_everything_that_is_imported_anywhere_is_declared() -> None:
    assert undeclared(declared(*EXTRAS), at_start=False) == {}
