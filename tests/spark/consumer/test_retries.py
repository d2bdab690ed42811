"""Retries, dead letters, replays and purges: both checkers find nothing, and the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.bodies import field, record
from tests.kit.dead_world import RETRY, DeadWorld
from tests.kit.delayed import send_all_kinds
from tests.kit.handed_out import received
from tests.kit.planted import clean_log_at
from tests.oracle.agreement import both_reports, differences
from txmq.consumer.send_back import SendBack
from txmq.maintenance.service import Maintenance
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import ReplayTarget
from txmq.ops.admin.topics import Topics
from txmq.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WHY = "asked the shop"
# One waits for days; four of all kinds and three retries were delivered.
DELAYED = (1, 7)
ORDER = record(field("order_number", "long"))
ORDER_BODY = '{"order_number": 1}'


def busy_world(folder: Path) -> DeadWorld:
    """Each kind of failed message: retried, dead, replayed, purged, of a namespace, of a type."""
    world = DeadWorld(folder)
    dead = world.bury(*"abcd")
    world.send("e")
    message = received(world.rows()[-1])
    for wait_s in (10, 30):
        world.send_back.send_back(message, reason="later")
        world.publisher.run_once()
        world.clock.advance(wait_s)
        world.deliver()
        message = received(world.rows(RETRY)[-1])
    SendBack(world.store, "acme.billing", world.clock).send_back(message, reason="x")
    world.letters.replay(Chosen((dead[0],)), reason=WHY, apply=True)
    world.letters.replay(Chosen((dead[1],)), reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.letters.purge(Chosen((dead[2],)), reason=WHY, apply=True)
    world.publisher.run_once()
    return world


def test_both_engines_judge_what_all_services_wrote_also_when_its_claims_are_cleaned(
    tmp_path: Path, quick: SparkSession
) -> None:
    world = busy_world(tmp_path)
    world.letters.purge(Chosen(everything=True), reason=WHY, apply=True)
    send_all_kinds(world)
    world.publisher.run_once()
    world.after(3_600)
    Maintenance(world.store, clock=world.clock).run_once()
    world.producer.close()
    before = verify(world.store.location)
    clean_log_at(world.store.location, "op")

    verified, by_oracle = both_reports(world.store.location, quick)

    for report in (before, verified, by_oracle):
        assert report.is_clean, report
        assert (report.counts["scheduled"], report.counts["delivered"]) == DELAYED
    assert differences(verified, by_oracle) == ()
    assert verified.unread == ()


def test_message_of_a_typed_topic_is_retried_as_its_bytes(tmp_path: Path) -> None:
    world = DeadWorld(tmp_path)
    Topics(world.store).create("typed", body={"encoding": "json", "schema": ORDER})
    world.send(ORDER_BODY, topic="typed")
    (row,) = world.rows("typed")
    world.send_back.send_back(received(row), reason="x", delay_level=-1)
    world.publisher.run_once()

    world.letters.replay(Chosen(everything=True), reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()

    assert [row["body"].decode() for row in world.rows("typed")] == [ORDER_BODY] * 2
    assert verify(world.store.location).is_clean
    world.producer.close()
