"""`python -m tests.places.dashboard_screenshots FOLDER [--all]`: pictures of the dashboard.

Without `--all` only those that docs/dashboard.md shows; with pngquant each is below 200 KiB.
Look at them before you commit them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.kit.dashboard_world import CONSUMERS, DashboardWorld
from tests.kit.reading import wait_until
from tests.places.browser import Browser, browser
from txmq.ops.dashboard.app import Dashboard, DashboardEndpoint
from txmq.ops.dashboard.snapshot import Counting, Snapshot

ROUNDS = 36
LOCATION = "/data/txmq"
WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")
# Those of the docs: the page, its width, its theme.
OF_DOCS = {
    ("overview", 1440, "light"), ("overview", 1440, "dark"), ("overview", 390, "light"),
    ("transaction", 1440, "light"), ("transactions", 390, "dark"),
}  # fmt: skip


class Pictured(Counting):
    """The store as if it were where the documents have it."""

    @property
    def last(self) -> Snapshot | None:
        snapshot = super().last
        if snapshot is None:
            return None
        return replace(snapshot, status=replace(snapshot.status, location=LOCATION))


def paths_of(ids: Mapping[str, str]) -> dict[str, str]:
    """One address of each kind of page."""
    return {
        "overview": "/",
        "transactions": "/transactions",
        "transaction": f"/transactions/{ids['discarded']}",
        "committed": f"/transactions/{ids['committed']}",
        "message": f"/messages/{ids['committed']}:0",
        "topics": "/topics",
        "topic": "/topics/order-paid",
        "groups": "/groups",
        "group": f"/groups/{CONSUMERS}",
        "dead-letters": "/dead-letters",
        "letters": f"/dead-letters/{CONSUMERS}",
        "delayed": "/delayed",
        "search": "/search?q=order-100",
        "problem": "/topics/nowhere",
    }


def taken(
    window: Browser, address: str, paths: Mapping[str, str], folder: Path, *, everything: bool
) -> None:
    for name, path in paths.items():
        for width in WIDTHS:
            for scheme in SCHEMES:
                if not everything and (name, width, scheme) not in OF_DOCS:
                    continue
                window.size(width)
                window.scheme(scheme)
                window.open(address.rstrip("/") + path)
                picture = window.picture(1_800 if width == WIDTHS[0] else 1_600)
                file = folder / f"dashboard-{name}-{width}-{scheme}.png"
                file.write_bytes(small(picture))


def small(picture: bytes) -> bytes:
    """A third of the bytes, where pngquant is on this machine."""
    program = shutil.which("pngquant")
    if program is None:
        return picture
    command = [program, "--speed", "1", "--strip", "--quality", "80-98", "-"]
    return subprocess.run(command, input=picture, capture_output=True, check=True).stdout


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="txmq-pictures-") as temporary:
        world = DashboardWorld(Path(temporary))
        world.day(ROUNDS)
        world.park("stock-changed")
        world.count()
        shown = Dashboard(world.store, DashboardEndpoint("127.0.0.1:0"), clock=world.clock)
        shown.counting = shown.app._counting = Pictured(world.store, world.clock)
        shown.app._shown._common["location"] = LOCATION
        # The history of the world is shown, and not one that began just now.
        shown.counting.history = world.dashboard.counting.history
        with shown.start() as running, browser(Path(temporary)) as window:
            wait_for_count(shown)
            taken(
                window, running.address, paths_of(world.ids), folder, everything="--all" in sys.argv
            )
        world.close()


def wait_for_count(shown: Dashboard) -> None:
    wait_until(lambda: shown.counting.last is not None, 60, "a count")


if __name__ == "__main__":
    main()
