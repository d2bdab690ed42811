"""A real Prometheus on this machine, which `make places` fetches."""

from __future__ import annotations

import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.s3 import free_port, running

SCRAPE_S = 1


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    port: int

    def ask(self, question: str) -> dict[tuple[str, ...], float]:
        """The newest values of an expression, by the values of its labels without job."""
        values = self._read("query", query=question)["result"]
        return {_labels(value["metric"]): float(value["value"][1]) for value in values}

    def alerts(self) -> dict[str, str]:
        """The state of each alert that is pending or firing."""
        return {one["labels"]["alertname"]: one["state"] for one in self._read("alerts")["alerts"]}

    def _read(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.loads(answer.read())["data"]


@contextmanager
def prometheus(folder: Path, target_port: int, rules: Path) -> Iterator[Prometheus]:
    """A server that scrapes one port of this machine each second."""
    settings = folder / "prometheus.yaml"
    scrape = {"job_name": "txmq", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}
    intervals = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    # JSON is YAML.
    values = {"global": intervals, "rule_files": [str(rules)], "scrape_configs": [scrape]}
    settings.write_text(json.dumps(values))
    port = free_port()
    command = [
        _program("prometheus"), f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with running(command, port, folder / "prometheus.log", {}):
        yield Prometheus(port)


def promtool() -> str:
    """The program that checks rules."""
    return _program("promtool")


def is_there() -> bool:
    """Whether the programs are on this machine."""
    return shutil.which("prometheus", path=_path()) is not None


def _program(name: str) -> str:
    program = shutil.which(name, path=_path())
    if program is None:
        raise RuntimeError(f"{name} is not there; run make prometheus")
    return program


def _path() -> str:
    return os.pathsep.join([os.environ.get("PROMETHEUS_FOLDER", ""), os.environ["PATH"]])


def _labels(metric: Mapping[str, str]) -> tuple[str, ...]:
    kept = {name: value for name, value in metric.items() if name not in {"job", "instance"}}
    return tuple(value for name, value in sorted(kept.items()) if name != "__name__")
