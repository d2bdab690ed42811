"""The most memory that Python and Java held while something ran (Linux only)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_INTERVAL_S = 0.01
MIB = 1024**2


@dataclass(slots=True)
class PeakMemory:
    """Resident memory in MiB; `together_mib` is the largest sum at one moment."""

    python_mib: float = 0.0
    java_mib: float = 0.0
    together_mib: float = 0.0

    def look(self, python_pid: int, java_pid: int) -> None:
        """Take one sample."""
        python, java = resident_mib(python_pid), resident_mib(java_pid)
        self.python_mib = max(self.python_mib, python)
        self.java_mib = max(self.java_mib, java)
        self.together_mib = max(self.together_mib, python + java)


@contextmanager
def peak_memory(spark: SparkSession) -> Iterator[PeakMemory]:
    """Watch this process and its Java until the block ends."""
    peak, stopping = PeakMemory(), threading.Event()
    pids = os.getpid(), java_pid(spark)

    def watch() -> None:
        while not stopping.wait(LOOK_INTERVAL_S):
            peak.look(*pids)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stopping.set()
        watcher.join()


def java_pid(spark: SparkSession) -> int:
    """The process of the driver."""
    jvm = spark._jvm  # noqa: SLF001 - the only way to ask Java
    assert jvm is not None  # noqa: S101
    return int(jvm.java.lang.ProcessHandle.current().pid())


def peak_mib() -> float:
    """The most memory that this process has held; what its parent held before is not in it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024


def resident_mib(pid: int) -> float:
    """Resident memory of a process now; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / MIB
