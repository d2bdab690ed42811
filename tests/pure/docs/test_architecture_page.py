"""docs/architecture.md shows each room on its floor and with its sign, as the code has them."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "txmq"
# Its sign is longer than a line.
WITHOUT_SIGN = {"verify"}


def page() -> str:
    return (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")


def picture() -> list[str]:
    return page().split("```")[1].splitlines()


def floors() -> list[list[str]]:
    """The layers of the contract, from the ground."""
    contract = configparser.ConfigParser()
    contract.read(REPOSITORY / "setup.cfg")
    layers = contract["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"\w+", layer) for layer in reversed(layers) if layer]


def drawn_floors() -> dict[int, str]:
    """The lines of each floor in the picture, by its number."""
    lines: dict[int, str] = {}
    number = 0
    for line in picture():
        if found := re.match(r" {1,2}(\d+)  ", line):
            number = int(found[1])
        lines[number] = lines.get(number, "") + line + "\n"
    return lines


def test_each_room_is_in_the_picture_with_its_sign() -> None:
    rooms = [path.parent for path in PACKAGE.glob("*/__init__.py")]
    signs = {
        room.name: ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
        for room in rooms
        if room.name not in WITHOUT_SIGN
    }

    assert signs
    for room, sign in signs.items():
        assert any(line.endswith(f" {sign}") and f" {room} " in line for line in picture()), room


def test_each_floor_of_the_contract_is_in_the_picture() -> None:
    drawn = drawn_floors()

    for number, names in enumerate(floors(), 1):
        for name in names:
            assert re.search(rf"\b{name}\b", drawn[number]), (number, name)
