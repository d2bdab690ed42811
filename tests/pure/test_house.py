"""The house stays one that a person can keep in the head: no closets, no corridors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.house import STOREYS, House

CLOSET_LINES = 120
FILES_MAX = 23
# Each small module that one other module imports, and why it is a file all the same.
CLOSETS = {
    "txmq.ops.admin.forms": "the list of all registers: who makes a new one adds it here",
    "txmq.ops.dashboard.attention": "what the overview adds to the list of needs, no page",
}
CLOSETS_MAX = 10


@pytest.fixture(scope="module")
def house() -> House:
    return House(Path(__file__).parents[2])


def test_no_small_module_has_a_single_importer(house: House) -> None:
    assert house.closets(CLOSET_LINES).keys() == CLOSETS.keys()


def test_exceptions_are_few_and_each_has_a_reason() -> None:
    assert len(CLOSETS) < CLOSETS_MAX
    assert all(CLOSETS.values())


def test_no_room_is_a_corridor(house: House) -> None:
    assert {room: files for room, files in house.rooms.items() if files > FILES_MAX} == {}


def test_each_room_belongs_to_one_storey(house: House) -> None:
    rooms = [room for storey in STOREYS.values() for room in storey]

    assert sorted(rooms) == sorted(house.places)


def test_a_closet_and_an_arrow_are_seen(tmp_path: Path) -> None:
    for room in ("store", "publish"):
        (tmp_path / "txmq" / room).mkdir(parents=True)
    (tmp_path / "txmq/store/small.py").write_text('"""Small."""\n\nHERE = 1\n')
    (tmp_path / "txmq/publish/large.py").write_text("from txmq.store.small import HERE\n")

    small = House(tmp_path)

    assert small.closets(CLOSET_LINES) == {"txmq.store.small": "txmq.publish.large"}
    assert small.arrows == {("publish", "store")}
    assert small.floors == 2
    assert small.code_lines({"store"}) == 1
