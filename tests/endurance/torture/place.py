"""Where the store under torture is: in a folder, or behind an S3 server over files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.kit import s3

FAULT_RATES = {"throttled": 0.02, "lost": 0.02}
_NAME = "place.json"


@dataclass(frozen=True)
class Place:
    """The place of one store; each process of a run reads it from the folder of the run.

    Attributes:
        location: of the store, as users give it.
        files: where the files of the store are on this disk.
        environment: what a process needs in its environment to reach it.
        orders: how many the busy producer takes in a round.
        writers: how many other producers take orders at once.
    """

    location: str
    files: str
    environment: Mapping[str, str] = field(default_factory=dict)
    orders: int = 450
    writers: int = 1

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The place of a run; the environment of this process is made fit for it."""
        place = cls(**json.loads((folder / _NAME).read_text(encoding="utf-8")))
        os.environ.update(place.environment)
        return place

    def write(self, folder: Path) -> None:
        """Keep it for the processes of the run."""
        (folder / _NAME).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def is_remote(self) -> bool:
        """Whether a request may be throttled, and its answer lost."""
        return "://" in self.location

    def copied(self, name: str) -> Place:
        """The place of a copy of the store beside it; without checkpoints."""
        files = Path(self.files).parent / name / "store"
        shutil.rmtree(files.parent, ignore_errors=True)
        shutil.copytree(self.files, files, ignore=shutil.ignore_patterns("checkpoints"))
        location = f"{self.location.rpartition('/')[0]}/{name}/store"
        return replace(self, location=location, files=str(files))

    def forget(self) -> None:
        """Remove a copy."""
        shutil.rmtree(Path(self.files).parent)


def disk(folder: Path) -> None:
    """A folder on this machine."""
    Place(str(folder / "store"), str(folder / "store")).write(folder)


@contextmanager
def object_store(folder: Path, orders: int, writers: int) -> Iterator[dict[str, Any]]:
    """An S3 server over files, behind a proxy that throttles and loses answers.

    What it yields tells in the end what the proxy did to how many requests.
    """
    root, requests = folder / "server", folder / "requests.log"
    told: dict[str, Any] = {}
    with (
        s3.versitygw(s3.versitygw_program(), root, folder / "server.log") as server,
        s3.proxy(server, requests, **FAULT_RATES) as reached,
    ):
        files = root / s3.BUCKET / "store"
        location = f"s3://{s3.BUCKET}/store"
        Place(location, str(files), reached.environment, orders, writers).write(folder)
        yield told
        told |= reached.fates()
