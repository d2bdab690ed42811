"""What others wrote is shown, and neither obeyed nor believed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.wsgi import asked
from txmq.errors import ConfigError
from txmq.ops.dashboard import rendering
from txmq.ops.dashboard.app import DashboardEndpoint
from txmq.ops.dashboard.lookups import BODY_SHOWN_BYTES, shown_body
from txmq.ops.dashboard.rendering import Pages

ROOM = Path(rendering.__file__).parent
EVIL = "\"><script>alert('1')</script><b onclick=x>\u202e\x1b[2J\u2066"


def test_text_of_others_is_escaped_and_printable() -> None:
    made = Pages(EVIL)
    text = made.html(
        "problem",
        {"problem": EVIL, "phrase": EVIL, "failure": None, "seen": None, "name": "problem"},
    )

    assert "<script>alert" not in text
    assert "<b onclick" not in text
    assert "&lt;script&gt;" in text
    assert not set(text) & set("\u202e\x1b\u2066")
    assert "\\u202e" in text


def test_no_template_switches_escaping_off_or_holds_script_or_style() -> None:
    for path in (ROOM / "templates").glob("*.html"):
        text = path.read_text("utf-8")
        assert "safe" not in text.replace('safe=""', ""), path
        assert "autoescape" not in text, path
        for refused in ("<style", "style=", "javascript:", " onclick", " onload"):
            assert refused not in text, path
        assert text.count("<script") == (path.name == "base.html"), path


def test_nothing_comes_from_elsewhere() -> None:
    for path in [*(ROOM / "templates").iterdir(), *(ROOM / "static").iterdir()]:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|[\"'(]//", text), path


@pytest.mark.parametrize(
    ("item", "name", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "due", "2026-01-02 03:04:05 UTC"),
        (6.0, "check_immunity_time_s", "6.0 s"), (2_048, "body_size_bytes", "2.0 KiB"),
        (True, "ordinary", "yes"), (12_345, "op_version", "12,345"), ([0, 1], "sequences", "0, 1"),
        ("x", "reason", "x"),
    ],
)  # fmt: skip
def test_details_have_units(item: object, name: str, text: str) -> None:
    assert rendering.value(item, name) == text


def test_body_is_cut_and_never_broken() -> None:
    assert shown_body("é".encode())["text"] == "é"
    assert shown_body(b"\xff\x00")["text"] == "ff 00"
    long = shown_body("é".encode() * BODY_SHOWN_BYTES)
    assert long["is_cut"]
    assert set(long["text"]) == {"é"}
    assert long["size_bytes"] == 2 * BODY_SHOWN_BYTES


@pytest.mark.parametrize("address", ["0.0.0.0:8320", "[::]:8320", "10.0.0.7:8320"])
def test_others_need_rights(address: str) -> None:
    with pytest.raises(ConfigError, match=r"dashboard: others reach.*client authority"):
        DashboardEndpoint(address)


def test_asked_is_an_address_of_this_machine() -> None:
    def echo(environment: dict[str, str], start: object) -> list[bytes]:
        start("200 OK", [])  # type: ignore[operator]
        return [f"{environment['PATH_INFO']}?{environment['QUERY_STRING']}".encode()]

    assert asked(echo, "/a%20b?q=1").text == "/a b?q=1"
