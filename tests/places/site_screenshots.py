"""`python -m tests.places.site_screenshots SITE FOLDER [PAGE ...]`: pictures of the built site.

Look at them after a change of deploy/site; they are not kept.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.kit.reading import wait_until
from tests.places.browser import browser

PAGES = ("index", "why", "start", "install", "comparison", "faults", "architecture", "api/sending")
WIDTHS = (1440, 390)
DRAWN = "return [...document.querySelectorAll('pre.mermaid')].length === 0"


def main(site: Path, folder: Path, pages: list[str]) -> None:
    """Take a picture of each page at each width."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with (
        tempfile.TemporaryDirectory() as profile,
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        browser(Path(profile)) as window,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for page in pages or PAGES:
            for width in WIDTHS:
                window.size(width)
                window.open(f"http://127.0.0.1:{server.server_port}/{page}.html")
                wait_until(lambda: window.run(DRAWN), 60)
                wide = window.run("return document.documentElement.scrollWidth")
                sys.stdout.write(f"{page} at {width}: {wide} wide\n")
                name = f"{page.replace('/', '-')}-{width}.png"
                (folder / name).write_bytes(window.picture())
        server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
