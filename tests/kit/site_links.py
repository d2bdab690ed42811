"""`python -m tests.kit.site_links FOLDER`: whether each link of a built site leads somewhere.

Only links inside the site: files, and places in pages. 1 where one leads nowhere.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - of the base class
        """Keep what leads somewhere and what is led to."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            if name in ("id", "name") and value:
                self.places.add(value)


def broken_links(folder: Path) -> list[str]:
    """Each as the page, the link."""
    paths = sorted(folder.resolve().rglob("*.html"))
    pages = {path: Page(path.read_text("utf-8")) for path in paths}
    return [
        f"{path.relative_to(folder.resolve())}: {link}"
        for path, page in pages.items()
        if path.name != "404.html"  # its links are absolute, of the server's root
        for link in sorted(page.links)
        if not _leads_somewhere(link, path, pages)
    ]


def _leads_somewhere(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    page = pages.get(target)
    return not parts.fragment or page is None or unquote(parts.fragment) in page.places


def main(folder: Path) -> int:
    """Print each broken link, or how many pages are sound."""
    broken = broken_links(folder)
    count = len(list(folder.rglob("*.html")))
    lines = broken or [f"{count} pages, all links lead somewhere"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(broken) or not count)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
