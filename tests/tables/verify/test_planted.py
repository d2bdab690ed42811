"""`verify` finds each bug that is planted in a store which txmq filled, and no other."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.kit.planted import BUGS, CHECK_MAX, Bug, Filled, assert_named, copied, filled, forget
from txmq.verify import verify

# One worker fills the store once.
pytestmark = pytest.mark.xdist_group("planted")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled(str(tmp_path_factory.mktemp("verify") / "sound"))


@pytest.fixture
def copy(sound: Filled, tmp_path: Path) -> Filled:
    return copied(sound, tmp_path / "copy")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_alone_breaks_just_what_it_should(bug: Bug, copy: Filled) -> None:
    subject = bug.subject_in(copy)
    bug.do(copy)

    report = verify(copy.location)

    assert set(report.broken) == {*bug.breaks, *bug.also}
    assert_named(subject, bug.breaks, report)


def test_what_nobody_forgot_is_missed(copy: Filled) -> None:
    forget(copy, date(2020, 1, 1))

    assert {"I4", "I17"} <= set(verify(copy.location).broken)


def test_report_says_by_which_maximum_it_judges_where_the_log_shows_another(copy: Filled) -> None:
    bug = next(bug for bug in BUGS if bug.name == "check_above_maximum")
    before = verify(copy.location).notes
    bug.do(copy)

    notes = verify(copy.location).notes

    assert not any("transaction_check_max" in note for note in before)
    assert any(f"transaction_check_max = {CHECK_MAX} for all" in note for note in notes)
