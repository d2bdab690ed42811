"""`python -m tests.recipes [NAME ...]`: run each block of docs/recipes with the real frameworks.

A framework that pip cannot fetch, or a server that is not there, is said to be missing; 1 where a
recipe fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.recipes.kafka_server import running_kafka

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "recipes"
ENVIRONMENTS = ROOT / ".venv" / "recipes"
_BLOCK = re.compile(r'^```(\w+)(?: title="([\w./-]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"<!-- needs:(.*?)-->")


@dataclass(frozen=True)
class Recipe:
    """A page: what its blocks need, the files that they name, and its test module."""

    name: str
    needs: tuple[str, ...]
    files: dict[str, str]
    test: str

    @classmethod
    def of(cls, page: Path) -> Recipe:
        """Read a page."""
        text = page.read_text("utf-8")
        needs = _NEEDS.search(text)
        if needs is None:
            raise SystemExit(f"{page.name} does not say what it needs: <!-- needs: ... -->")
        blocks = _BLOCK.findall(text)
        files = {title: block for _, title, block in blocks if title}
        tests = [block for kind, title, block in blocks if kind == "python" and not title]
        return cls(page.stem, tuple(needs[1].split()), files, "\n\n".join(tests))

    def write_to(self, folder: Path) -> None:
        """Write the files and the test module."""
        for name, text in {**self.files, f"test_{self.name}.py": self.test}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def recipes() -> list[Recipe]:
    """All of them."""
    return [Recipe.of(page) for page in sorted(PAGES.glob("*.md")) if page.stem != "README"]


def main(names: list[str]) -> int:
    """Run the recipes; print a line for each."""
    outcomes = [_tried(one) for one in recipes() if not names or one.name in names]
    passed, failed = outcomes.count(True), outcomes.count(False)
    _say(f"{passed} passed, {failed} failed, {outcomes.count(None)} skipped")
    return int(failed > 0 or not passed)


def _tried(recipe: Recipe) -> bool | None:
    """Whether a recipe works; None where what it needs is missing."""
    try:
        python = _environment(recipe)
    except subprocess.CalledProcessError as error:
        _say(f"missing  {recipe.name}: {' '.join(recipe.needs)} cannot be had\n{error.stderr}")
        return None
    with tempfile.TemporaryDirectory(prefix=f"txmq-{recipe.name}-") as folder:
        recipe.write_to(Path(folder))
        if recipe.name != "kafka":
            return _passes(recipe, python, folder, {})
        with running_kafka(ROOT / ".venv" / "kafka") as server:
            if server is None:
                _say("missing  kafka: its jars or a Java cannot be had; by documents only")
                return None
            return _passes(recipe, python, folder, {"KAFKA": server})


def _passes(recipe: Recipe, python: str, folder: str, more: dict[str, str]) -> bool:
    options = ("-q", "-p", "no:cacheprovider", "--color=no")
    # -I would hide the files of the recipe; a folder of its own is empty but for them.
    ran = subprocess.run(
        [python, "-m", "pytest", *options, f"test_{recipe.name}.py"],
        cwd=folder, env={**_variables(), "PYTHONPATH": folder, **more},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    is_right = ran.returncode == 0
    _say(f"{'works   ' if is_right else 'broken  '} {recipe.name}: {_last(ran.stdout)}")
    if not is_right:
        _say(ran.stdout + ran.stderr)
    return is_right


def _environment(recipe: Recipe) -> str:
    """The Python of an environment with what a recipe needs; made once."""
    folder = ENVIRONMENTS / recipe.name
    python = folder / "bin" / "python"
    wanted = " ".join(recipe.needs)
    stamp = folder / "needs.txt"
    if not (stamp.exists() and stamp.read_text("utf-8") == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        installer = [uv, "pip", "install", "-q", "-p", python] if uv else [
            python, "-m", "pip", "install", "-q",
        ]  # fmt: skip
        _run(*installer, "-e", f"{ROOT}[testing,database]", *recipe.needs)
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _run(*command: str | Path) -> None:
    """As pip is told of an index, so is uv."""
    variables, index = _variables(), _index()
    if index and "UV_DEFAULT_INDEX" not in variables:
        variables["UV_DEFAULT_INDEX"] = index
    subprocess.run(
        [str(part) for part in command],
        check=True, capture_output=True, text=True, env=variables,
    )  # fmt: skip


def _index() -> str:
    for key in (":env:.index-url", "global.index-url"):
        asked = [sys.executable, "-m", "pip", "config", "get", key]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return ""


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
