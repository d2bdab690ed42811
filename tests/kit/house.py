"""Measures the house: modules, rooms, importers, arrows, code lines. `make house` prints it.

`python -m tests.kit.house FOLDER` measures another clone, for a comparison before and after.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

STOREYS = {
    "ground": {"errors", "ground"},
    "core": {
        "check", "consumer", "delta", "listeners", "maintenance", "message", "producer", "publish",
        "store", "user_data",
    },
    "spark": {"spark"},
    "ops": {"__main__", "job", "ops", "testing"},
    "verify": {"verify"},
}  # fmt: skip
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The folder, as a package name."""
        return self.name.rpartition(".")[0]

    @property
    def place(self) -> str:
        """What the first drawing shows of it: the room or single module below `txmq`."""
        return self.name.split(".")[1]

    @cached_property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def code_lines(self) -> int:
        """Lines that hold code: no docstring, no comment, no blank line."""
        rows: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _LAYOUT:
                rows |= set(range(token.start[0], token.end[0] + 1))
        return len(rows - self._docstring_rows())

    @cached_property
    def import_lines(self) -> int:
        imports = (node for node in ast.walk(self.tree) if isinstance(node, _IMPORTS))
        return sum(node.end_lineno - node.lineno + 1 for node in imports if node.end_lineno)

    @cached_property
    def imports(self) -> set[str]:
        """All that it imports, as dotted names of modules and of what may be one."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        return names

    def _docstring_rows(self) -> set[int]:
        rows: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False):
                text = node.body[0]
                rows |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return rows


_IMPORTS = (ast.Import, ast.ImportFrom)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class House:
    """The modules of a clone, without the signs (`__init__.py`) of its rooms."""

    def __init__(self, repository: Path) -> None:
        """Read every file of the package."""
        self.repository = repository
        paths = [
            path
            for path in sorted((repository / "txmq").rglob("*.py"))
            if "files" not in path.parts and path.name != "__init__.py"
        ]
        self.modules = {
            name: Module(name, path.read_text("utf-8"))
            for path in paths
            for name in [".".join(path.relative_to(repository).with_suffix("").parts)]
        }

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules, and the rooms by their own names, that each module imports."""
        names = set(self.modules) | set(self.rooms) - {"txmq"}
        return {name: (m.imports & names) - {name} for name, m in self.modules.items()}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules that import each module."""
        importers: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for other in imported:
                importers[other].add(name)
        return importers

    @cached_property
    def rooms(self) -> Counter[str]:
        """The number of files in each room."""
        return Counter(module.room for module in self.modules.values())

    @cached_property
    def arrows(self) -> set[tuple[str, str]]:
        """The arrows of the first drawing: which room or single module imports which."""
        pairs = {
            (module.place, name.split(".")[1])
            for module in self.modules.values()
            for name in module.imports
            if name.startswith("txmq.")
        }
        return {pair for pair in pairs if pair[0] != pair[1] and pair[1] in self.places}

    @property
    def places(self) -> set[str]:
        """The rooms and single modules of the first drawing."""
        return {module.place for module in self.modules.values()}

    @property
    def floors(self) -> int:
        """The length of the longest way down in the first drawing; 0 where it has a circle."""
        below = defaultdict(set)
        for upper, lower in self.arrows:
            below[upper].add(lower)
        heights: dict[str, int] = {}
        left = self.places
        while left:
            ready = {place for place in left if below[place] <= set(heights)}
            if not ready:
                return 0
            heights |= {p: 1 + max((heights[o] for o in below[p]), default=0) for p in ready}
            left = left - ready
        return max(heights.values())

    def closets(self, lines: int) -> dict[str, str]:
        """Return the modules below so many lines that one module imports, and that module."""
        return {
            name: next(iter(importers))
            for name, importers in self.importers.items()
            if len(importers) == 1 and name in self.modules and self.modules[name].lines < lines
        }

    def code_lines(self, places: set[str]) -> int:
        """Sum the code lines of these rooms and single modules."""
        return sum(m.code_lines for m in self.modules.values() if m.place in places)

    def not_imperative(self) -> int | None:
        """Count the docstrings that do not begin with a verb, by ruff; None without ruff."""
        ruff = Path(sys.executable).with_name("ruff")
        if not ruff.exists():
            return None
        command = [ruff, "check", "--isolated", "--no-cache", "--select", "D401", "--exit-zero"]
        options = ["--output-format", "concise", self.repository / "txmq"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        return sum(" D401 " in line for line in done.stdout.splitlines())


def figures(house: House) -> dict[str, object]:
    """Return what `make house` prints, by its words."""
    widest, files = house.rooms.most_common(1)[0]
    code = house.code_lines(house.places)
    imports = sum(module.import_lines for module in house.modules.values())
    return {
        "modules": len(house.modules),
        "rooms": len(house.rooms),
        "files of the widest room": f"{files} ({widest})",
        "modules below 120 lines with one importer": len(house.closets(120)),
        "import edges": sum(map(len, house.imports.values())),
        "import lines of code lines": f"{imports / code:.1%}",
        "code lines": code,
        **{f"code lines, {name}": house.code_lines(places) for name, places in STOREYS.items()},
        "docstrings that do not begin with a verb (D401)": house.not_imperative(),
        "first drawing": f"{len(house.places)} rooms, {house.floors} floors, "
        f"{len(house.arrows)} arrows",
    }


def main() -> None:
    """Print the figures of a clone, by default of this one."""
    repository = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    for words, figure in figures(House(repository.resolve())).items():
        print(f"{words:<50} {figure}")  # noqa: T201 - the output of `make house`


if __name__ == "__main__":
    main()
