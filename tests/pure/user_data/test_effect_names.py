"""The messages that a commit of an inbox names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from txmq.user_data.delta_inbox import Place, names, names_of

PLACES = some.builds(Place, some.sampled_from("ab"), some.integers(0, 12))


@given(some.lists(PLACES), PLACES)
def test_text_names_these_messages_and_no_other(places: list[Place], place: Place) -> None:
    assert names(names_of(places, 3), place) == (place in places)


def test_neighbours_are_named_as_one_range() -> None:
    text = names_of([Place("q", offset) for offset in (7, *range(3), 8, 1)], 3)

    assert text == '{"read":3,"q":[[0,2],[7,8]]}'


@pytest.mark.parametrize(
    "text",
    ["", "note", "7", "[]", '{"q": 7}', '{"q": [[1]]}', '{"q": [["a", "b"]]}', '{"q": "xy"}'],
)
def test_text_of_others_names_nothing(text: str) -> None:
    assert not names(text, Place("q", 1))
