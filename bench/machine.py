"""What a result depends on; never the name of a machine, a user or a folder."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from txmq.spark.java import find_java

PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numpy")
GIB = 1024**3


def machine_facts() -> dict[str, Any]:
    """Cores, memory, processor, versions and the commit that was measured."""
    java = find_java()
    return {
        "git_commit": _git_commit(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": java.version if java else None,
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _git_commit() -> str | None:
    """The commit; `-dirty` where the code differs, for each part adds to the result file."""
    commit = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--", ":/", ":(exclude,top)bench/results")
    return f"{commit}-dirty" if commit and changed else commit


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    here = Path(__file__).parent
    found = subprocess.run(
        [git, "-C", str(here), *arguments], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
