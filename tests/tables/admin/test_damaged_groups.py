"""A consumer group whose state cannot be read is deleted; a member that lives is not believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.builders import table_versions
from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, fail, wake
from tests.kit.consumer_world import retrying_consumer as consumer
from txmq import ConsumerGroups
from txmq.consumer.group import group_in
from txmq.consumer.group_rules import EVERY_QUEUE
from txmq.delta import log_files as new_beginning
from txmq.errors import (
    CommitConflictError,
    ConsumerGroupInUseError,
    ConsumerGroupNotFoundError,
    StorageUnavailableError,
    TxmqError,
)
from txmq.ops.backup.positions import sight_of
from txmq.store.register import Register
from txmq.store.store import Store
from txmq.verify import verify


def table_of(store: Store) -> Path:
    return Path(store.location, "state", f"group_{BILLING}")


def commits(store: Store) -> list[Path]:
    return sorted(table_of(store).glob("_delta_log/*.json"))


# --- damages ------------------------------------------------------------------------------------


def emptied(store: Store) -> None:
    commits(store)[-1].write_bytes(b"")


def torn(store: Store) -> None:
    commits(store)[-1].write_bytes(commits(store)[-1].read_bytes()[:40])


def torn_before(store: Store) -> None:
    commits(store)[1].write_bytes(b"{")


def file_lost(store: Store) -> None:
    for file in table_of(store).glob("*.parquet"):
        file.unlink()


def strange_value(store: Store) -> None:
    register = store.tables.register(f"group_{BILLING}")
    seen = register.read()
    write = register.table.writer.replace

    def with_garbage(rows: object, marks: dict[str, int]) -> None:
        text = rows.set_column(1, "value", [["{garbage"]])  # type: ignore[attr-defined]
        write(text, marks)

    register.table.writer.replace = with_garbage  # type: ignore[assignment,method-assign]
    register.swap(seen, {}, 0)


DAMAGES = (emptied, torn, torn_before, file_lost, strange_value)


def read_and_damaged(world: ConsumerWorld, damage: Callable[[Store], None] = emptied) -> None:
    """A group with an offset and without members, and then its damage."""
    world.send_to(0, "a", "b")
    with consumer(world) as member:
        drained(member)
        member.commit()
    damage(world.store)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_group_that_cannot_be_read_is_deleted_and_begins_as_a_new_one(
    world: ConsumerWorld, groups: ConsumerGroups, damage: Callable[[Store], None]
) -> None:
    read_and_damaged(world, damage)
    before = table_versions(world.store)
    with pytest.raises(TxmqError):
        groups.list()

    dry = groups.delete(BILLING)
    assert dry.problem is not None
    assert dry.problem.startswith(f"state/group_{BILLING}: ")
    assert (dry.is_written, table_versions(world.store)) == (False, before)

    assert groups.delete(BILLING, apply=True).is_written
    assert groups.list() == []
    with pytest.raises(ConsumerGroupNotFoundError):
        groups.delete(BILLING)
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a", "b"]
        member.commit()
    assert [one.group for one in groups.list()] == [BILLING]
    # So do delta-rs, the checker and a backup, which reads all of the log that is left.
    assert (
        f"{DeltaTable(str(table_of(world.store))).version():020d}" == commits(world.store)[-1].stem
    )
    assert verify(world.store.location).is_clean
    sight_of(world.store.tables)


def test_a_member_that_still_lives_is_not_believed_and_joins_again(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a", "b")
    old = consumer(world)
    assert bodies(old.poll(1, 0)) == ["a"]
    epoch = group_in(world.store, BILLING).read().epoch
    emptied(world.store)
    groups.delete(BILLING, apply=True)

    with consumer(world) as new:
        assert bodies(new.poll(1, 0)) == ["a"]
        old.commit()
        state = group_in(world.store, BILLING).read()
        assert state.epoch > epoch
        assert not any(state.offsets[""].values())
        new.commit()
        assert bodies(drained(new)) == ["b"]
        new.commit()
    wake(old)
    assert drained(old) == []


def test_what_failed_before_comes_again_when_it_fails_anew(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    """What is sent back is named by how often the group went back, and that is lost."""
    world.send_to(0, "a")
    with consumer(world) as member:
        assert member.run_once(fail).sent_back == 1
    world.publisher.run_once()
    world.after(2)
    emptied(world.store)
    assert groups.delete(BILLING, apply=True).retries == 1

    # Its retry stayed, and is there too.
    with consumer(world) as member:
        assert member.run_once(fail).sent_back == 2
    world.publisher.run_once()
    world.after(2)
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a", "a"]
        member.seek("order-paid", 0, 0)
        member.commit()
    replays = group_in(world.store, BILLING).read().replays
    assert max(replays.values()) > replays[EVERY_QUEUE]


def test_a_deletion_that_was_killed_in_the_middle_is_finished_by_the_next_one(
    world: ConsumerWorld, groups: ConsumerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_and_damaged(world, torn)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("write_first_checkpoint", "_forget"):
        with monkeypatch.context() as patch:
            patch.setattr(new_beginning, step, die)
            with pytest.raises(KeyboardInterrupt):
                groups.delete(BILLING, apply=True)

    with pytest.raises(ConsumerGroupNotFoundError):
        groups.delete(BILLING, apply=True)
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a", "b"]


def test_retries_that_wait_for_their_time_hold_it_up_not(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a")
    with consumer(world) as member:
        assert member.run_once(fail).sent_back == 1
    emptied(world.store)

    assert groups.delete(BILLING, apply=True).is_written
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a"]
        member.commit()
        world.publisher.run_once()
        world.after(2)
        wake(member)
        assert bodies(drained(member)) == ["a"]


def test_who_mends_it_in_time_keeps_the_group(
    world: ConsumerWorld, groups: ConsumerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_and_damaged(world)
    begin_anew = Register.begin_anew

    def after_a_member_joined(*arguments: object) -> bool:
        commits(world.store)[-1].unlink()
        member = consumer(world)
        drained(member)
        member.commit()
        return begin_anew(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Register, "begin_anew", after_a_member_joined)
    with pytest.raises(CommitConflictError, match="look again"):
        groups.delete(BILLING, apply=True)
    monkeypatch.undo()
    with pytest.raises(ConsumerGroupInUseError):
        groups.delete(BILLING, apply=True)


def test_a_storage_that_is_away_is_no_damage(
    world: ConsumerWorld, groups: ConsumerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_and_damaged(world, lambda _: None)

    def is_away(self: Register) -> None:
        raise StorageUnavailableError(self.table.name, "cannot be reached")

    monkeypatch.setattr(Register, "read", is_away)
    with pytest.raises(StorageUnavailableError):
        groups.delete(BILLING, apply=True)
