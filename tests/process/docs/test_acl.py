"""deploy/rights/posix-acl.sh, run: each role has a group of its own, and the kernel says no."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.grants import FOLDER, GROUP, READERS, ROLES, file_name, named
from tests.kit.grants import TOPIC as ANY_TOPIC
from tests.process.docs import role_process
from tests.process.docs.role_process import WRITABLE
from tests.process.docs.test_security_page import REPOSITORY, filled

NAMES = {
    GROUP: role_process.GROUP, READERS: role_process.READERS, ANY_TOPIC: role_process.TOPIC
}  # fmt: skip
# Users and groups that are on no machine: rights go by number.
OWNER = 71_999
IDS = {role: 71_000 + place for place, role in enumerate(ROLES)}
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setfacl") is None, reason="needs root and setfacl"
)


@pytest.fixture(scope="module")
def granted() -> Iterator[Path]:
    # The folders of pytest are closed to others.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        location = filled(Path(folder, "store"))
        subprocess.run(["/bin/chmod", "-R", "o-rwx", location], check=True)
        script = (FOLDER / "posix-acl.sh").read_text("utf-8")
        for role in sorted(ROLES, key=len, reverse=True):
            script = script.replace(f"g:txmq-{file_name(role)}:", f"g:{IDS[role]}:")
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", location], check=False, capture_output=True, text=True
        )
        if "not supported" in done.stderr:
            pytest.skip(f"no access control lists here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        yield location


@pytest.fixture
def store(granted: Path) -> Path:
    """Without a file that belongs to who runs the tests, in place of its group."""
    subprocess.run(["/bin/chown", "-R", f"{OWNER}:{OWNER}", granted], check=True)
    return granted


def run_as(role: str, what: str, store: Path) -> str:
    """What a process without the rights of root, and with the group of the role, prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.process.docs.role_process", what, str(store)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300,
        group=IDS[role], extra_groups=[],
    )  # fmt: skip
    if done.stderr.startswith("capset"):
        pytest.skip("this machine lets no root give up its rights")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("role", role_process.ROLES)
def test_role_does_its_work_and_may_write_nothing_else(store: Path, role: str) -> None:
    allowed = [str(store / named(folder, NAMES)) for folder in ROLES[role].writes]

    for folder in run_as(role, WRITABLE, store).splitlines():
        assert any(f"{folder}/".startswith(f"{one}/") for one in allowed), folder
    run_as(role, role, store)
