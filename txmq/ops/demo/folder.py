"""The folder of one demo: its store, the dispatchers' own tables, and files between processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txmq.errors import StoreExistsError
from txmq.ops.demo.plan import PlannedTransaction
from txmq.store.config import Config

GROUP = "dispatchers"
CONSUMER_GROUP = "carrier-count"
DISPATCHER_PROPERTY = "dispatcher"
NUMBER_PROPERTY = "plan"

# Short times, so that two minutes show every way in which a transaction can end.
CONFIG = Config(
    transaction_timeout_s=3.0,
    transaction_check_interval_s=3.0,
    transaction_check_max=4,
    check_trigger_interval_s=2.0,
    listener_timeout_s=2.0,
    check_lease_s=5.0,
    default_topic_queue_nums=4,
)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings that all processes of a demo share; `started_s` is the time of flight 0."""

    dispatchers: int
    threads: int
    transactions: int
    seconds: float
    started_s: float = 0.0

    def due_s(self, number: int) -> float:
        """Return when a transaction is sent; they are spread evenly over the demo."""
        return self.started_s + self.seconds * number / max(1, self.transactions)


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """Paths below one folder, and the small files that its processes exchange."""

    path: Path

    @property
    def store(self) -> Path:
        """The store, to look into with `txmq`."""
        return self.path / "store"

    @property
    def ready_file(self) -> Path:
        """A file that exists while a broker serves the store."""
        return self.path / "broker.ready"

    @property
    def carriers_file(self) -> Path:
        """The counts of the streaming consumer."""
        return self.path / "carriers.json"

    @property
    def _settings_file(self) -> Path:
        return self.path / "demo.json"

    def books(self, dispatcher: int) -> Path:
        """Return the path of the business tables of one dispatcher."""
        return self.path / f"dispatcher-{dispatcher}.sqlite"

    def log(self, name: str) -> Path:
        """Return the path of the standard output and error of a process."""
        return self.path / f"{name}.log"

    def make(self) -> None:
        """Make the folder, or use an empty one.

        Raises: StoreExistsError where it holds anything.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise StoreExistsError(str(self.path), "is not empty; name a new folder for the demo")

    def keep_plan(self, dispatcher: int, plan: Iterable[PlannedTransaction]) -> None:
        """Write the part of the plan that one dispatcher works off."""
        write_json(self._plan_file(dispatcher), [asdict(planned) for planned in plan])

    def plan(self, dispatcher: int) -> Sequence[PlannedTransaction]:
        """Read the part of the plan that one dispatcher works off."""
        values = read_json(self._plan_file(dispatcher), [])
        return [PlannedTransaction.from_dict(planned) for planned in values]

    def keep_settings(self, settings: DemoSettings) -> None:
        """Write the settings for all processes."""
        write_json(self._settings_file, asdict(settings))

    def settings(self) -> DemoSettings:
        """Read the settings that were written."""
        return DemoSettings(**read_json(self._settings_file, {}))

    def carriers(self) -> Mapping[str, int]:
        """Read the departures per carrier that the streaming consumer has counted so far."""
        return dict(read_json(self.carriers_file, {}))

    def _plan_file(self, dispatcher: int) -> Path:
        return self.path / f"plan-{dispatcher}.json"


def write_json(path: Path, value: object) -> None:
    """Replace a file in one step: a reader sees the old content or the new one."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value), encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105 - Path.replace does the same and hides that it is atomic


def read_json(path: Path, default: Any) -> Any:
    """Return the value of a file, or `default` where the file does not exist yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
