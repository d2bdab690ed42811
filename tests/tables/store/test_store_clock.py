"""The time of the store is that of its storage, whatever the clock of a machine shows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from txmq.errors import StorageError, StoreFullError
from txmq.ground.clock import AffineClock, Clock, SystemClock
from txmq.store.store import Store
from txmq.store.store_clock import CLOCK_FOLDER, LOOK_INTERVAL_MS, StoreClock
from txmq.testing import ManualClock, WrongClock

HOUR_MS = 3_600_000
DAY_S = 86_400


class Storage:
    """A storage and a count of milliseconds that tests move."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms, self.count_ms = now_ms, 0
        self.looks = 0
        self.failure: StorageError | None = None

    def pass_ms(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.count_ms += passed_ms

    def written_ms(self) -> int:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return self.now_ms


Make = Callable[..., StoreClock]


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def make(store: Store, storage: Storage) -> Make:
    def made(clock: Clock | None = None, hold_s: float = 0.0) -> StoreClock:
        return StoreClock(
            store, clock, hold_s=hold_s, storage_ms=storage.written_ms,
            count_ms=lambda: storage.count_ms,
        )  # fmt: skip

    return made


# --- the storage ----------------------------------------------------------------------------------


def test_it_shows_the_time_of_a_file_that_it_has_written(store: Store) -> None:
    before_ms = time.time_ns() // 1_000_000
    shown_ms = StoreClock(store).now_ms()

    # The system may count the times of files in steps of some milliseconds.
    assert before_ms - 100 <= shown_ms <= time.time_ns() // 1_000_000


def test_nothing_is_left_in_the_store(store: Store) -> None:
    StoreClock(store).now_ms()

    assert list(Path(store.location, CLOCK_FOLDER).iterdir()) == []


def test_it_is_not_asked_means_that_nothing_is_written(store: Store) -> None:
    StoreClock(store)

    assert not Path(store.location, CLOCK_FOLDER).exists()


def test_clock_of_a_machine_that_is_wrong_changes_nothing(store: Store) -> None:
    right, wrong = StoreClock(store), StoreClock(store, WrongClock(30 * DAY_S))

    assert abs(right.now_ms() - wrong.now_ms()) < HOUR_MS


def test_storage_that_cannot_be_written_is_named(store: Store) -> None:
    Path(store.location, CLOCK_FOLDER).write_text("no folder")

    with pytest.raises(StorageError, match=CLOCK_FOLDER):
        StoreClock(store).now_ms()


# --- counting on ----------------------------------------------------------------------------------


def test_it_counts_on_without_a_look(make: Make, storage: Storage) -> None:
    clock = make()
    first_ms = clock.now_ms()
    storage.pass_ms(LOOK_INTERVAL_MS - 1)

    assert clock.now_ms() == first_ms + LOOK_INTERVAL_MS - 1
    assert storage.looks == 1


def test_it_looks_again_after_a_minute(make: Make, storage: Storage) -> None:
    clock = make()
    clock.now_ms()
    storage.pass_ms(LOOK_INTERVAL_MS)
    storage.now_ms += 7

    assert clock.now_ms() == storage.now_ms
    assert storage.looks == 2


def test_look_that_fails_later_costs_nothing(make: Make, storage: Storage) -> None:
    clock = make()
    clock.now_ms()
    storage.failure = StoreFullError(CLOCK_FOLDER, "no space left")
    storage.pass_ms(LOOK_INTERVAL_MS)

    assert clock.now_ms() == storage.now_ms
    storage.pass_ms(1)
    assert clock.now_ms() == storage.now_ms
    assert storage.looks == 2


def test_look_that_fails_at_first_is_an_error_and_is_tried_again(
    make: Make, storage: Storage
) -> None:
    clock = make()
    storage.failure = StoreFullError(CLOCK_FOLDER, "no space left")
    with pytest.raises(StoreFullError):
        clock.now_ms()
    storage.failure = None

    assert clock.now_ms() == storage.now_ms


def test_small_correction_lets_it_stand_still(make: Make, storage: Storage) -> None:
    clock = make()
    clock.now_ms()
    storage.pass_ms(LOOK_INTERVAL_MS - 1)
    before_ms = clock.now_ms()
    storage.now_ms -= 900
    storage.pass_ms(1)

    assert clock.now_ms() == before_ms
    storage.pass_ms(1000)
    assert clock.now_ms() == storage.now_ms


def test_slow_look_is_tried_again_and_the_quickest_counts(store: Store, storage: Storage) -> None:
    takes_ms = iter([4000, 300, 900])

    def slow() -> int:
        written_ms = storage.now_ms
        storage.pass_ms(next(takes_ms))
        return written_ms

    clock = StoreClock(store, storage_ms=slow, count_ms=lambda: storage.count_ms)

    assert clock.now_ms() == storage.now_ms - 300


# --- jumps ----------------------------------------------------------------------------------------


def test_jump_of_the_storage_is_held_back_until_it_has_lasted(make: Make, storage: Storage) -> None:
    clock = make(hold_s=3600)
    before_ms = clock.now_ms()
    storage.now_ms += 3 * DAY_S * 1000
    for minute in range(1, 61):
        storage.pass_ms(LOOK_INTERVAL_MS)
        assert clock.now_ms() == before_ms + minute * LOOK_INTERVAL_MS
    storage.pass_ms(LOOK_INTERVAL_MS)

    assert clock.now_ms() == storage.now_ms


def test_jump_that_is_set_right_again_was_never_believed(make: Make, storage: Storage) -> None:
    clock = make(hold_s=3600)
    before_ms = clock.now_ms()
    for jump_ms in (3 * DAY_S * 1000, -3 * DAY_S * 1000, 3 * DAY_S * 1000):
        storage.now_ms += jump_ms
        storage.pass_ms(LOOK_INTERVAL_MS)
        clock.now_ms()
    for _ in range(59):
        storage.pass_ms(LOOK_INTERVAL_MS)
        assert clock.now_ms() == before_ms + storage.count_ms


def test_without_a_hold_a_jump_is_believed_at_once(make: Make, storage: Storage) -> None:
    clock = make()
    clock.now_ms()
    storage.now_ms += HOUR_MS
    storage.pass_ms(LOOK_INTERVAL_MS)

    assert clock.now_ms() == storage.now_ms


def test_storage_that_is_set_back_is_believed_at_once(make: Make, storage: Storage) -> None:
    clock = make(hold_s=3600)
    clock.now_ms()
    storage.now_ms -= HOUR_MS
    storage.pass_ms(LOOK_INTERVAL_MS)

    assert clock.now_ms() == storage.now_ms


# --- clocks of tests ------------------------------------------------------------------------------


def test_manual_clock_moves_the_time_of_the_store_too(store: Store) -> None:
    manual = ManualClock()
    clock = StoreClock(store, manual)
    manual.advance(10 * DAY_S)

    assert clock.now_ms() == manual.now_ms()
    assert not Path(store.location, CLOCK_FOLDER).exists()


def test_wrong_clock_beside_a_manual_one_is_the_manual_one_for_the_store(store: Store) -> None:
    manual = ManualClock()
    wrong = WrongClock(3600, of_store=manual)

    assert wrong.now_ms() == manual.now_ms() + HOUR_MS
    assert StoreClock(store, wrong).now_ms() == manual.now_ms()


def test_affine_clock_shows_the_storages_times_as_its_own(make: Make, storage: Storage) -> None:
    affine = AffineClock(wall_start_ms=storage.now_ms, start_ms=0, speed=60.0)
    clock = make(affine)
    assert clock.now_ms() == 0
    storage.pass_ms(1000)

    assert clock.now_ms() == 60_000


def test_store_clock_of_a_store_clock_has_the_same_own_clock(store: Store) -> None:
    manual = ManualClock()
    inner = StoreClock(store, manual)

    assert StoreClock.of(store, inner) is inner
    assert StoreClock(store, inner, hold_s=1).own is manual
    assert isinstance(StoreClock.of(store, None).own, SystemClock)


# --- what a machine has shown ---------------------------------------------------------------------


def test_time_that_a_machine_shows_is_taken_if_it_is_near(make: Make, storage: Storage) -> None:
    clock = make()

    assert clock.not_beyond(storage.now_ms - HOUR_MS) == storage.now_ms - HOUR_MS
    assert clock.not_beyond(storage.now_ms + 1500) == storage.now_ms + 1500
    assert clock.now_ms() == storage.now_ms + 1500
    storage.pass_ms(2000)
    assert clock.not_beyond(storage.now_ms + HOUR_MS) == storage.now_ms


def test_service_whose_clock_is_far_says_so_once(
    make: Make, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    own = ManualClock(now_ms=storage.now_ms + HOUR_MS)
    clock = make(_Shown(own))
    with caplog.at_level(logging.WARNING):
        clock.now_ms()
        storage.pass_ms(LOOK_INTERVAL_MS)
        own.advance(60)
        clock.now_ms()

    assert [record.getMessage() for record in caplog.records] == [
        "this machine's clock is 3600.0 s ahead of the store's; the store's time counts"
    ]


class _Shown(SystemClock):
    """A machine's clock that tests set, while the storage goes on by itself."""

    def __init__(self, shown: ManualClock) -> None:
        self._shown = shown

    def now_ms(self) -> int:
        return self._shown.now_ms()
