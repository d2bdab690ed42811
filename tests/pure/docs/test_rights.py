"""The grants of deploy/rights and the table of docs/security.md come from one place."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.kit.grants import FOLDER, LOGS, PAGE, ROLES, file_name, files, posix_script, s3_policy

# The part of a store that a first run has made.
THERE = {"$STORE", *(f"$STORE/{name}" for name in (*LOGS, "topics/order-paid"))}


@pytest.mark.parametrize("place", files(), ids=lambda place: place.name)
def test_file_is_what_its_place_makes(place: Path) -> None:
    again = "run python -m tests.kit.grants"

    assert place.read_text("utf-8") == files()[place], again


def test_nothing_else_is_there_and_the_page_names_each() -> None:
    made = {place.name for place in files() if place != PAGE}

    assert {place.name for place in FOLDER.iterdir()} == made
    assert {name for name in made if f"rights/{name}" in PAGE.read_text("utf-8")} == made


@pytest.mark.parametrize("role", ROLES)
def test_policy_names_no_more_than_the_store(role: str) -> None:
    policy = json.loads((FOLDER / f"s3-{file_name(role)}.json").read_text("utf-8"))

    assert policy == s3_policy(ROLES[role])
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert all(action.startswith("s3:") and "*" not in action for action in statement["Action"])
        inside = "arn:aws:s3:::lake" if statement["Sid"] == "List" else "arn:aws:s3:::lake/txmq/"
        assert all(resource.startswith(inside) for resource in statement["Resource"])
        assert all(resource.count("*") <= 1 for resource in statement["Resource"])


def test_commands_of_the_script_are_whole() -> None:
    for line in posix_script().splitlines():
        words = shlex.split(line, comments=True)
        assert not words or words[0] in ("set", "mkdir", "setfacl") or line.startswith("STORE=")


@pytest.mark.parametrize("part", posix_script().split("\n# ")[2:], ids=lambda part: part[:8])
def test_part_of_a_role_makes_the_folders_that_a_first_run_leaves_out(part: str) -> None:
    made = set(THERE)
    for words in map(shlex.split, part.splitlines()[1:]):
        places = {word for word in words if word.startswith("$STORE")}
        made |= places if words[:1] == ["mkdir"] else set()

        assert places <= made
