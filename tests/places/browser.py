"""A real Chromium, driven by the W3C's WebDriver protocol; needs chromium and chromium-driver."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.kit.reading import wait_until
from tests.kit.s3 import free_port

PROGRAMS = ("chromium", "chromedriver")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip
ANSWER_S = 60.0


def is_there() -> bool:
    return all(shutil.which(name) for name in PROGRAMS)


def axe_script() -> str | None:
    """The source of axe-core, of which `make browser` names the file; None without it."""
    path = os.environ.get("AXE")
    return Path(path).read_text("utf-8") if path and Path(path).exists() else None


class Browser:
    """One window. Elements are found and pressed by scripts and keys."""

    def __init__(self, session: str) -> None:
        self._session = session

    def _call(self, path: str, value: Any = None, *, method: str = "POST") -> Any:
        sent = None if method == "GET" else (value or {})
        answer = requests.request(method, f"{self._session}{path}", json=sent, timeout=ANSWER_S)
        told = answer.json()["value"]
        if not answer.ok:
            raise AssertionError(told["message"])
        return told

    def open(self, address: str) -> None:
        self._call("/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns, or of its promise."""
        return self._call("/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int = 900) -> None:
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=False)  # fmt: skip

    def scheme(self, name: str) -> None:
        """What the machine prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        """One key, wherever the focus is."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def picture(self, height_max: int = 2_400) -> bytes:
        """The whole page, or its beginning, as PNG."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        self.size(width, min(height, height_max))
        return base64.b64decode(self._call("/screenshot", method="GET"))

    def console(self) -> list[str]:
        """What the browser complained about since the last call."""
        entries = self._call("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def close(self) -> None:
        requests.delete(self._session, timeout=ANSWER_S)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile."""
    port = free_port()
    driver = subprocess.Popen(
        [shutil.which("chromedriver") or "", f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    root = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(root), ANSWER_S, "chromedriver")
        made = Browser(f"{root}/session/{_session(root, folder)}")
        yield made
        made.close()
    finally:
        driver.terminate()
        driver.wait(ANSWER_S)


def _session(root: str, folder: Path) -> str:
    options = {
        "binary": shutil.which("chromium"),
        "args": [*ARGUMENTS, f"--user-data-dir={folder / 'profile'}"],
    }
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    sent = {"capabilities": {"alwaysMatch": wanted}}
    answer = requests.post(f"{root}/session", json=sent, timeout=ANSWER_S).json()["value"]
    if "sessionId" not in answer:
        raise AssertionError(answer["message"])
    return str(answer["sessionId"])


def _answers(root: str) -> bool:
    try:
        return bool(requests.get(f"{root}/status", timeout=5).json()["value"]["ready"])
    except requests.ConnectionError:
        return False
