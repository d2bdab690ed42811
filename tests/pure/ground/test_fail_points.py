"""Fail points: what arms them, what they do, and that they do nothing in production."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txmq
from txmq.ground.fail_points import FailPoint, reached
from txmq.testing import FAIL_POINTS_VARIABLE, arm_fail_points

CODE = Path(txmq.__file__).parent
POINT = FailPoint.FACTS_DECIDED
REACH = f"from txmq.ground.fail_points import FailPoint, reached; reached(FailPoint('{POINT}'))"


@contextmanager
def armed(text: str) -> Iterator[None]:
    disarm = arm_fail_points(text)
    try:
        yield
    finally:
        disarm()


def exit_code(code: str) -> int:
    environment = {**os.environ, FAIL_POINTS_VARIABLE: f"{POINT}=kill"}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode


def test_variable_alone_does_nothing() -> None:
    assert exit_code(f"import txmq, txmq.ops.broker; {REACH}") == 0


def test_variable_kills_where_the_test_module_is_imported() -> None:
    assert exit_code(f"import txmq.testing; {REACH}") == -signal.SIGKILL


def test_no_module_of_txmq_imports_the_test_module() -> None:
    importing = [
        path.name
        for path in CODE.rglob("*.py")
        if "testing" not in path.parts and "txmq.testing" in path.read_text(encoding="utf-8")
        and "import" in path.read_text(encoding="utf-8").split("txmq.testing")[0][-20:]
    ]  # fmt: skip

    assert importing == []


def test_fault_strikes_at_its_hit_alone() -> None:
    with armed(f"{POINT}=raise@2"):
        reached(POINT)
        reached(FailPoint.PLAN_MADE)
        with pytest.raises(OSError, match=POINT):
            reached(POINT)
        reached(POINT)


def test_several_faults_are_told_apart() -> None:
    with armed(f"{POINT}=pause-0.0, {FailPoint.PLAN_MADE}=raise"):
        reached(POINT)
        with pytest.raises(OSError, match=FailPoint.PLAN_MADE):
            reached(FailPoint.PLAN_MADE)


def test_nothing_strikes_after_the_end() -> None:
    with armed(f"{POINT}=raise"):
        pass

    reached(POINT)


@pytest.mark.parametrize(
    "text", ["no.such.point=kill", f"{POINT}=explode", f"{POINT}", f"{POINT}=pause-x", "=kill"]
)
def test_unknown_point_or_action_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="points: "):
        arm_fail_points(text)


def test_every_point_is_reached_somewhere() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in CODE.rglob("*.py"))

    assert [
        point.name for point in FailPoint if f"reached(FailPoint.{point.name})" not in code
    ] == []
