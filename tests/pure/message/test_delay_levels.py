from __future__ import annotations

import pytest

from txmq.errors import ConfigError
from txmq.message.delay_levels import DEFAULT_LEVELS, DelayLevel, delay_s_of, level_seconds
from txmq.store.config import Config


def test_the_default_table_is_rocketmqs() -> None:
    minutes = [60 * minute for minute in (*range(1, 11), 20, 30, 60, 120)]
    assert level_seconds(DEFAULT_LEVELS) == (1, 5, 10, 30, *minutes)


def test_each_name_says_its_pause() -> None:
    names = [f"AFTER_{text.upper()}" for text in DEFAULT_LEVELS.split()]
    assert [level.name for level in DelayLevel] == names
    assert [level.value for level in DelayLevel] == list(range(1, 19))


@pytest.mark.parametrize(("level", "pause_s"), [(0, None), (1, 1), (18, 7200), (19, 7200)])
def test_above_the_last_level_is_the_last(level: int, pause_s: int | None) -> None:
    assert delay_s_of(level, level_seconds(DEFAULT_LEVELS)) == pause_s


def test_a_store_may_have_other_levels() -> None:
    assert Config(message_delay_level="2s 3h 1d").delay_levels_s == (2, 10_800, 86_400)


@pytest.mark.parametrize("table", ["", " ", "5", "s", "0s", "-1s", "1.5s", "1w", "1s,5s", "99999d",
                                   "5000000000s", "\u0661s"])  # fmt: skip
def test_a_table_that_is_none_is_a_fault_of_the_settings(table: str) -> None:
    with pytest.raises(ConfigError, match="message_delay_level"):
        Config(message_delay_level=table)
