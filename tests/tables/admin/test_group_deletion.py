"""Consumer groups are deleted: what goes, what stays, and who is told no."""

from __future__ import annotations

import pytest

from tests.kit.builders import table_versions
from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, fail, offsets_of
from tests.kit.consumer_world import retrying_consumer as consumer
from tests.kit.delay_world import TOPIC
from txmq import ConsumerGroups
from txmq.consumer.group import group_in
from txmq.consumer.lag import ConsumerLag, readable_groups
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import (
    ConsumerGroupInUseError,
    ConsumerGroupNotFoundError,
    InvalidNameError,
    TopicInUseError,
)
from txmq.ground.fail_points import FailPoint, arm
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.testing import before_commit
from txmq.verify import verify


def later(world: ConsumerWorld) -> None:
    """What was sent back has come again."""
    world.publisher.run_once()
    world.after(2)


def test_group_is_gone_and_one_of_its_name_begins_anew(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a", "b")
    with consumer(world) as member:
        assert member.run_once(lambda _: None).consumed == 2
    before = table_versions(world.store)

    dry = groups.delete("billing")
    assert table_versions(world.store) == before
    assert (dry.subscription, dry.is_written) == ({TOPIC: "*"}, False)
    assert groups.delete("billing", apply=True).is_written

    assert (groups.list(), ConsumerLag(world.store).of_all()) == ([], [])
    assert readable_groups(world.store, world.clock) == []
    with pytest.raises(ConsumerGroupNotFoundError):
        groups.delete("billing", apply=True)
    with pytest.raises(ConsumerGroupNotFoundError):
        groups.reset_offsets("billing", TOPIC, ConsumeFromWhere.FIRST_OFFSET)
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a", "b"]


def test_group_with_a_member_is_refused_until_its_lease_is_over(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a")
    member = consumer(world)
    assert member.poll(1, 0)
    member.commit()

    with pytest.raises(ConsumerGroupInUseError, match="or wait for the end") as caught:
        groups.delete("billing", apply=True)
    assert "force" not in str(caught.value)
    world.clock.advance(60)
    assert groups.delete("billing", apply=True).is_written

    # It was silent, and lives: nothing of it counts for the group of the same name.
    world.send_to(0, "b")
    assert bodies(drained(member)) == ["a", "b"]


def test_member_that_joins_while_the_group_is_deleted_stays(
    world: ConsumerWorld, groups: ConsumerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_to(0, "a")
    consumer(world).close()
    module = "txmq.ops.admin.groups"
    planned = __import__(module, fromlist=["delete_topic"]).delete_topic

    def joined(*arguments: object, **options: object) -> object:
        if not options["apply"]:
            consumer(world)
        return planned(*arguments, **options)

    monkeypatch.setattr(f"{module}.delete_topic", joined)
    with pytest.raises(ConsumerGroupInUseError):
        groups.delete("billing", apply=True)

    assert len(group_in(world.store, BILLING).read().members) == 1


def test_reset_does_not_bring_back_a_group_that_is_deleted_meanwhile(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a", "b")
    consumer(world).close()

    with (
        before_commit(lambda: deleted(groups), table=f"group_{BILLING}"),
        pytest.raises(ConsumerGroupNotFoundError),
    ):
        groups.reset_offsets(BILLING, TOPIC, ConsumeFromWhere.LAST_OFFSET, apply=True)

    assert groups.list() == []
    assert bodies(drained(consumer(world))) == ["a", "b"]


def deleted(groups: ConsumerGroups) -> None:
    assert groups.delete(BILLING, apply=True).is_written


def test_retries_go_and_dead_letters_stay(world: ConsumerWorld, groups: ConsumerGroups) -> None:
    world.send_to(0, "a", "b")
    with consumer(world) as member:
        (first, _) = drained(member)
        member.send_back(first, reason="never", delay_level=-1)
        member.commit()
        member.seek(TOPIC, 0, 1)
        assert member.run_once(fail).sent_back == 1
    world.publisher.run_once()
    with pytest.raises(TopicInUseError):
        groups.delete("billing", apply=True)
    assert offsets_of(world), "refused before anything was written"
    later(world)

    result = groups.delete("billing", apply=True)

    assert (result.retries, result.dead_letters) == (1, 1)
    assert DeadLetters(world.store, "billing").count() == 1
    assert verify(world.store.location).is_clean
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a", "b"]
        # What failed for the deleted group fails for the new one, too, and comes again.
        member.seek(TOPIC, 0, 0)
        assert member.run_once(fail).sent_back == 2
        later(world)
        assert sorted(bodies(drained(member))) == ["a", "b"]


def test_what_failed_for_the_deleted_group_is_not_left_out_for_the_new_one(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a")
    with consumer(world) as member:
        assert member.run_once(fail).sent_back == 1
    later(world)
    groups.delete("billing", apply=True)

    with consumer(world) as member:
        assert member.run_once(fail).sent_back == 1
    later(world)
    with consumer(world) as member:
        assert bodies(drained(member)) == ["a"]


def test_deletion_that_was_killed_in_the_middle_is_finished_by_the_next_one(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.send_to(0, "a")
    with consumer(world) as member:
        member.run_once(fail)
    later(world)

    def die(point: FailPoint) -> None:
        if point is FailPoint.REGISTER_SWAPPED:
            raise KeyboardInterrupt

    disarm = arm(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            groups.delete("billing", apply=True)
    finally:
        disarm()

    assert groups.delete("billing", apply=True).retries == 1
    with pytest.raises(ConsumerGroupNotFoundError):
        groups.delete("billing", apply=True)


@pytest.mark.parametrize("name", ["", "no/name", 7, None])
def test_wrong_name_is_refused(groups: ConsumerGroups, name: object) -> None:
    with pytest.raises(InvalidNameError):
        groups.delete(name)  # type: ignore[arg-type]


def test_group_that_nobody_has_joined_is_not_found(groups: ConsumerGroups) -> None:
    with pytest.raises(ConsumerGroupNotFoundError, match="check the name"):
        groups.delete("typo", apply=True)
