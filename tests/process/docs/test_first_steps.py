"""The first programs of README.md and docs/start.md run as they stand and show the message."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from tests.kit.pages import REPOSITORY, block
from txmq import Config, Store

FIRST = "from txmq import Broker"
SHOWN = "order-paid {'order': 42}\n"
# Imports of the packages that only extras bring fail, as they do after a plain installation.
PLAIN = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
if sys.argv[0] == "txmq":
    runpy.run_module("txmq", run_name="__main__")
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def required(names: set[str]) -> set[str]:
    """These packages and all that they bring without an extra of theirs."""
    found: set[str] = set()
    while names:
        found |= names
        lines = [line for name in names for line in requires_of(name) if "extra ==" not in line]
        names = {normal(line) for line in lines} - found
    return found


def requires_of(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # for another system or another Python


def normal(line: str) -> str:
    return re.split(r"[^\w.-]", line.strip())[0].lower().replace("_", "-")


def modules_of_extras() -> set[str]:
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    core = required({normal(line) for line in settings["options"]["install_requires"].split()})
    return {
        module
        for module, owners in packages_distributions().items()
        if module != "txmq" and not module.startswith("_")
        if not any(normal(owner) in core for owner in owners)
    }


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, with the packages of a plain installation."""
    plain = folder / "plain_installation.py"
    plain.write_text(PLAIN.format(missing=modules_of_extras()))
    path = os.pathsep.join((str(REPOSITORY), str(folder)))
    return subprocess.run(
        [sys.executable, str(plain), *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, **SETTINGS},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


SETTINGS = {"TXMQ_LISTENERS": '{shop: "shop:listener"}'}


def test_what_only_extras_bring_is_missing_in_the_first_programs() -> None:
    assert {"pyspark", "pandas", "jinja2", "sqlalchemy"} <= modules_of_extras()
    assert modules_of_extras().isdisjoint({"pyarrow", "numpy", "deltalake", "obstore"})


def test_program_of_the_readme_without_spark_shows_its_message(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(block("README.md", FIRST))

    done = run(tmp_path, "first.py")

    assert (done.stdout, done.stderr) == ("{'id': 43, 'status': 'paid'}\n", "")


def test_first_program_of_five_minutes_shows_its_message_and_does_so_again(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(block("docs/start.md", FIRST))

    runs = [run(tmp_path, "first.py") for _ in range(2)]

    assert [(done.stdout, done.stderr) for done in runs] == [(SHOWN, "")] * 2


def commands(begins_with: str) -> list[list[str]]:
    """The commands of a block of docs/start.md that run a program."""
    lines = block("docs/start.md", begins_with).splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[each[0] == "python" :] for each in words if each[0] in ("python", "txmq")]


def test_order_of_a_process_that_died_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(block("docs/start.md", "import os"))
    # The page waits for seven seconds; in this store a transaction is asked about at once.
    settings = Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    Store.create(tmp_path / "shop", settings)
    booked, died = [run(tmp_path, *command) for command in commands("python shop.py 42")]
    assert (booked.returncode, died.returncode) == (0, 1), booked.stderr + died.stderr

    served, consumed = [run(tmp_path, *command) for command in commands("export PYTHONPATH")]
    (verify,) = commands("txmq verify")

    bodies = [json.loads(line)["body"] for line in consumed.stdout.splitlines()]
    assert bodies == ['{"order":42}', '{"order":43}'], served.stderr
    verified = run(tmp_path, *verify)
    assert verified.returncode == 0, verified.stdout
