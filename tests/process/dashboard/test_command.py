"""`txmq dashboard` as a process: it listens on this machine, and ends when it is told to."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import requests

from tests.kit.reading import wait_until
from tests.kit.stores import fresh_store


def test_dashboard_answers_this_machine_and_ends_at_sigterm(tmp_path: Path) -> None:
    store = fresh_store(tmp_path / "store")
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "txmq",
            "dashboard",
            store.location,
            "--listen",
            "127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert found is not None
        address = found[0]
        wait_until(lambda: requests.get(address, timeout=60).status_code == 200, 60, "a count")

        page = requests.get(address, timeout=60)
        assert "Nothing needs an operator" in page.text
        foreign = requests.get(address, headers={"Host": "evil.example"}, timeout=60)
        assert foreign.status_code == 421
        assert requests.post(address, timeout=60).status_code == 405
        style = re.search(r'href="(/static/style.css[^"]*)"', page.text)
        assert style is not None
        sent = requests.get(address.rstrip("/") + style[1], timeout=60)
        assert sent.headers["Content-Type"] == "text/css; charset=utf-8"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.communicate()
