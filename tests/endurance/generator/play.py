"""One run: the steps of a plan, a time in which everything is healed, and the judgement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from tests.endurance.generator.deeds import DEEDS, PAUSES_S
from tests.endurance.generator.draw import role_of
from tests.endurance.generator.judge import Find, findings
from tests.endurance.generator.operators import COMMANDS, LOOKS
from tests.endurance.generator.plan import Plan, Step, all_steps
from tests.endurance.generator.simulation import Simulation
from tests.endurance.generator.strangers import STRANGE_DEEDS
from tests.endurance.generator.world import KEYS, World

# The longest pause of a parked topic, a lease of a group and every delay are shorter than these.
HEALING = (3, 5, 5)
# What a group of these fails on comes again in its place.
AGAIN = (("consume", "ordered0"), ("receive", "packer0"))
ROUNDS = (
    ("publish", "publisher0"), ("deliver", "delay0"), ("check", "check0"),
    ("publish", "publisher1"), ("consume", "member0"), ("consume", "inbox0"),
    ("consume", "ordered0"), ("receive", "packer0"), ("publish", "publisher0"),
)  # fmt: skip
# One has the messages, the other one their effects.
READING = {"member", "inbox"}
_FAST_DISK = Path("/dev/shm")  # noqa: S108 - a folder in memory


def played(plan: Plan, folder: Path | None = None) -> list[Find]:
    """What is wrong after a run of this plan; its store stays in `folder` where one is given."""
    with _root(folder) as root, _silent(), _without_spark():
        simulation = Simulation(root, plan.seed)
        world = World(simulation, plan.settings)
        world.deeds = {**DEEDS, **COMMANDS, **LOOKS, **STRANGE_DEEDS}
        with simulation.in_place():
            for step in plan.steps:
                world.play(step)
            roles = {role_of(step.who) for step in all_steps(plan.steps)}
            _heal(world, roles | (READING if roles & READING else set()))
        with world.environment():
            return findings(world)


def _heal(world: World, roles: set[str]) -> None:
    """No fault any more; services, and groups that had members, work until nothing is left."""
    world.simulation.disk.clear()
    world.simulation.losing.clear()
    world.keys.clear()
    world.other_settings.clear()
    world.all_keys = KEYS[1]
    for clock in world.clocks.values():
        clock.wrong_s = 0.0
    for turn, pause in enumerate(HEALING):
        if turn == 1:
            # First with the processes that there are, then with new ones.
            world.end_all()
        if turn == len(HEALING) - 1:
            world.ledger.errors.clear()
        world.simulation.sleep(PAUSES_S[pause])
        _play(world, ROUNDS, roles)
    world.ledger.read_s = world.simulation.now_s
    for _ in range(2):
        world.simulation.sleep(PAUSES_S[HEALING[0]])
        _play(world, AGAIN, roles)


def _play(world: World, round_: Sequence[tuple[str, str]], roles: set[str]) -> None:
    for do, who in round_:
        if do not in ("consume", "receive") or role_of(who) in roles:
            world.play(Step(do, who))


@contextmanager
def _root(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    where = _FAST_DISK if _FAST_DISK.is_dir() else None
    with TemporaryDirectory(prefix="txmq-generator-", dir=where) as temporary:
        yield Path(temporary)


@contextmanager
def _without_spark() -> Iterator[None]:
    """A session of the process that plays is none of the processes that are played."""
    homes = ("txmq.listeners.delta", "txmq.user_data.local_transaction")
    with ExitStack() as patches:
        for home in homes:
            patches.enter_context(mock.patch(f"{home}.active_session", return_value=None))
        yield


@contextmanager
def _silent() -> Iterator[None]:
    """Faults are many and each is logged."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
