"""The checker is green on what is right and red on each planted bug, under the right number."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.stores import (
    DEAD,
    GROUP,
    Half,
    HandMadeStore,
    Op,
    Settled,
    halves,
    transaction_id,
)
from txmq.errors import StoreNotFoundError
from txmq.store.store import Store
from txmq.verify import VerifyReport, verify


@pytest.fixture
def made(clean: HandMadeStore) -> HandMadeStore:
    return clean


def broken(report: VerifyReport) -> set[str]:
    return set(report.broken)


def rows_of(report: VerifyReport, invariant: str) -> list[str]:
    (result,) = [result for result in report.results if result.invariant == invariant]
    return [violation.row_id for violation in result.violations]


# --- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize("drained", [True, False])
def test_every_kind_of_life_is_clean(made: HandMadeStore, *, drained: bool) -> None:
    report = verify(made.location, drained=drained)

    assert report.is_clean, report.to_dict()
    assert report.counts["transactions"] == 11
    assert report.counts["committed"] == 4
    assert report.counts["rolled_back"] == 3
    assert report.counts["discarded"] == report.counts["incomplete"] == 1
    assert report.counts["pending"] == 2
    assert report.counts["visible_messages"] == 5
    assert report.counts["dead_letters"] == 2
    assert report.counts["doubled_half_rows"] == 1
    assert report.counts["claims_without_half"] == 1
    assert report.counts["claims_without_effect"] == 5


def test_a_new_store_is_clean(store: Store) -> None:
    assert verify(store.location).is_clean


def test_a_file_uri_is_the_same_store(made: HandMadeStore) -> None:
    assert verify(f"file://{made.location}").counts == verify(made.location).counts


def test_versions_are_those_that_were_read(made: HandMadeStore) -> None:
    versions = verify(made.location).versions

    assert versions["op"] == DeltaTable(f"{made.location}/op").version()
    assert versions["topics/orders"] == DeltaTable(f"{made.location}/topics/orders").version()


def test_nothing_is_written(made: HandMadeStore) -> None:
    before = {path for path in Path(made.location).rglob("*") if path.is_file()}

    verify(made.location)

    assert {path for path in Path(made.location).rglob("*") if path.is_file()} == before


def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        verify(str(tmp_path))


def test_the_report_is_json_and_shows_no_body(made: HandMadeStore) -> None:
    made.publish("orders", Half(77, 0, message_count=1), op_version=3)

    text = json.dumps(verify(made.location).to_dict())

    assert "I4" in text
    assert "body-77" not in text


def test_a_dataframe_transaction_has_a_head_without_payload(empty: HandMadeStore) -> None:
    far = 1 << 56
    head = Half(1, 0, None, message_count=2)
    messages = [Half(1, far, "orders"), Half(1, far * 3 + 7, "orders", queue=1)]
    empty.prepare(head, *messages)
    version = empty.claim(Op(1, "COMMIT"))
    empty.settle(Settled(1, "COMMITTED", version), mark=version)
    empty.publish("orders", *messages, op_version=version)

    report = verify(empty.location)

    assert report.is_clean, report.to_dict()
    assert report.counts["messages"] == 2


def test_compaction_changes_nothing(made: HandMadeStore) -> None:
    for path in ("half", "op", "settled", "topics/orders"):
        DeltaTable(f"{made.location}/{path}").optimize.compact()

    assert verify(made.location).is_clean


def test_claims_that_txmq_does_not_write_change_nothing(made: HandMadeStore) -> None:
    made.claim(
        Op(3, "COMMIT", source="somebody"),
        Op(3, "PUBLISH"),
        Op(3, "COMMIT", changes={"ordinal": None}),
        Op(3, "COMMIT", changes={"producer_group": None}),
        Op(3, "COMMIT", changes={"transaction_id": None}),
    )

    assert verify(made.location).is_clean


def test_halves_without_an_address_are_nobody_s(made: HandMadeStore) -> None:
    made.prepare(Half(20, 0, message_count=1, changes={"transaction_id": None, "message_id": None}))

    assert verify(made.location).is_clean


def test_an_expired_discard_keeps_its_dead_letter(empty: HandMadeStore) -> None:
    own = halves(1, "orders")
    empty.prepare(*own)
    version = empty.claim(
        Op(1, "UNKNOWN", life=0, check_times=1),
        Op(1, "DISCARD", life=0),
        Op(1, "EXPIRE", life=0),
    )
    facts = [Settled(1, "DISCARDED", version, 1), Settled(1, "EXPIRED", version, 2)]
    empty.settle(*facts, mark=version)
    empty.bury(*own, op_version=version)

    assert verify(empty.location).is_clean


def test_halves_repaired_too_late_are_excused_and_their_commit_came_to_nothing(
    empty: HandMadeStore,
) -> None:
    first, second = halves(1, "orders", "orders")
    empty.prepare(first)
    version = empty.claim(Op(1, "COMMIT"))
    empty.settle(Settled(1, "INCOMPLETE", version, reason="MISSING"), mark=version)
    empty.prepare(second)

    report = verify(empty.location)

    assert report.broken == ("I28",)
    assert report.counts["incomplete"] == 1


def test_a_repaired_transaction_is_resumed_and_committed(empty: HandMadeStore) -> None:
    first, second = halves(1, "orders", "orders")
    empty.prepare(first)
    version = empty.claim(Op(1, "COMMIT"))
    empty.settle(Settled(1, "INCOMPLETE", version, reason="MISSING"), mark=version)
    empty.prepare(second)
    later = empty.claim(Op(1, "RESUME", life=1), Op(1, "COMMIT"))
    facts = [Settled(1, "PENDING", later, 0, life=1), Settled(1, "COMMITTED", later, 1, life=1)]
    empty.settle(*facts, mark=later)
    empty.publish("orders", first, second, op_version=later, life=1)

    assert verify(empty.location).is_clean


# --- a running store ------------------------------------------------------------------------------


def committed_but_hidden(empty: HandMadeStore) -> int:
    empty.prepare(*halves(1, "orders", "stock"))
    version = empty.claim(Op(1, "COMMIT"))
    empty.settle(Settled(1, "COMMITTED", version), mark=version)
    return version


def test_what_is_not_reached_yet_is_open_while_running(empty: HandMadeStore) -> None:
    version = committed_but_hidden(empty)
    empty.publisher_state(version - 1, {})

    report = verify(empty.location, drained=False)

    assert report.is_clean, report.to_dict()
    assert report.counts["not_published_yet"] == 2
    assert "I1" in broken(verify(empty.location))


def test_claims_not_settled_yet_are_no_fault_while_running(empty: HandMadeStore) -> None:
    empty.prepare(*halves(1, "orders"))
    empty.claim(Op(1, "COMMIT"))

    assert verify(empty.location, drained=False).is_clean
    assert "I10" in broken(verify(empty.location))


def test_below_the_low_water_mark_nothing_may_be_missing(empty: HandMadeStore) -> None:
    version = committed_but_hidden(empty)
    empty.publisher_state(version, {})

    report = verify(empty.location, drained=False)

    assert broken(report) == {"I1", "I23"}


def test_a_parked_topic_is_open_while_running(empty: HandMadeStore) -> None:
    version = committed_but_hidden(empty)
    first, _ = halves(1, "orders", "stock")
    empty.publish("orders", first, op_version=version)
    empty.publisher_state(version, {"stock": version})

    assert verify(empty.location, drained=False).is_clean
    assert {"I1", "I13"} <= broken(verify(empty.location))


def test_below_its_own_mark_a_topic_may_miss_nothing(empty: HandMadeStore) -> None:
    version = committed_but_hidden(empty)
    empty.prepare(*halves(2, "orders"))
    later = empty.claim(Op(2, "COMMIT"))
    empty.settle(Settled(2, "COMMITTED", later), mark=later)
    empty.publish("orders", *halves(2, "orders"), op_version=later)

    report = verify(empty.location, drained=False)

    assert version < later
    assert rows_of(report, "I1") == [f"{transaction_id(1)}:0"]


# --- planted bugs: those that test_planted.py has not ---------------------------------------------


def rolled_back_is_shown(made: HandMadeStore) -> None:
    made.publish("orders", *halves(2, "orders"), op_version=3)


def row_is_doubled(made: HandMadeStore) -> None:
    made.publish("orders", *halves(10, "orders"), op_version=3)


def open_transaction_is_shown(made: HandMadeStore) -> None:
    made.publish("orders", *halves(3, "orders"), op_version=3)


def incomplete_transaction_is_shown(made: HandMadeStore) -> None:
    made.publish("orders", Half(8, 0, message_count=2), op_version=3)


def wrong_group_is_shown(made: HandMadeStore) -> None:
    version = made.claim(Op(3, "COMMIT", group="strangers"))
    made.settle(Settled(3, "COMMITTED", version), mark=version)
    made.publish("orders", *halves(3, "orders"), op_version=version)


def transaction_is_shown_in_part(made: HandMadeStore) -> None:
    both = halves(20, "orders", "orders")
    made.prepare(*both)
    version = made.claim(Op(20, "COMMIT"))
    made.settle(Settled(20, "COMMITTED", version), mark=version)
    made.publish("orders", both[0], op_version=version)


def one_topic_is_forgotten(made: HandMadeStore) -> None:
    made.remove("topics/stock", "true")


def offset_is_skipped(made: HandMadeStore) -> None:
    made.next_offsets["orders", 0] += 1
    commit_another(made)


def offset_is_taken_twice(made: HandMadeStore) -> None:
    made.next_offsets["orders", 0] -= 1
    commit_another(made)


def commit_another(made: HandMadeStore, changes: dict[str, object] | None = None) -> None:
    made.prepare(*halves(20, "orders"))
    version = made.claim(Op(20, "COMMIT"))
    made.settle(Settled(20, "COMMITTED", version), mark=version)
    made.publish("orders", *halves(20, "orders"), op_version=version, changes=changes)


def body_is_altered(made: HandMadeStore) -> None:
    commit_another(made, changes={"body": b"body-20-1"})


def body_is_cut_to_null(made: HandMadeStore) -> None:
    commit_another(made, changes={"body": None})


def tags_and_keys_change_places(made: HandMadeStore) -> None:
    commit_another(made, changes={"tags": "key-20", "keys": None})


def queue_is_altered(made: HandMadeStore) -> None:
    commit_another(made, changes={"queue_id": 7, "queue_offset": 0})


def message_id_is_altered(made: HandMadeStore) -> None:
    commit_another(made, changes={"message_id": f"{transaction_id(20)}:1"})


def row_names_another_commit(made: HandMadeStore) -> None:
    commit_another(made, changes={"op_version": 3})


def dead_letters_are_missing_altogether(made: HandMadeStore) -> None:
    made.remove(f"topics/{DEAD}", "true")


def open_is_among_the_dead(made: HandMadeStore) -> None:
    made.bury(*halves(3, "orders"), op_version=3)


def dead_letter_names_another_life(made: HandMadeStore) -> None:
    made.bury(*halves(6, "orders"), op_version=3, life=1)


def dead_letter_comes_from_nowhere(made: HandMadeStore) -> None:
    made.bury(*halves(77, "orders"), op_version=3)


def queue_is_out_of_order(made: HandMadeStore) -> None:
    made.prepare(*halves(20, "orders"), *halves(21, "orders"))
    version = made.claim(Op(20, "COMMIT"), Op(21, "COMMIT"))
    facts = [Settled(20, "COMMITTED", version), Settled(21, "COMMITTED", version, 1)]
    made.settle(*facts, mark=version)
    made.publish("orders", *halves(21, "orders"), *halves(20, "orders"), op_version=version)


def transaction_is_out_of_order(made: HandMadeStore) -> None:
    both = halves(20, "orders", "orders")
    made.prepare(*both)
    version = made.claim(Op(20, "COMMIT"))
    made.settle(Settled(20, "COMMITTED", version), mark=version)
    made.publish("orders", both[1], both[0], op_version=version)


def fact_has_no_half(made: HandMadeStore) -> None:
    made.settle(Settled(99, "COMMITTED", 2, 6), mark=3)


def complete_transaction_is_hidden_as_incomplete(made: HandMadeStore) -> None:
    made.prepare(*halves(20, "orders"))
    version = made.claim(Op(20, "COMMIT"))
    later = datetime.now(tz=UTC) + timedelta(hours=1)
    fact = Settled(20, "INCOMPLETE", version, reason="MISSING", settled_timestamp=later)
    made.settle(fact, mark=version)


def contradicting_halves_are_shown(made: HandMadeStore) -> None:
    commit_another(made)
    made.prepare(Half(20, 0, message_count=1, changes={"body": b"another"}))


PLANTED: list[tuple[Callable[[HandMadeStore], None], set[str]]] = [
    (row_is_doubled, {"I3", "I23"}),
    (incomplete_transaction_is_shown, {"I5", "I23"}),
    (wrong_group_is_shown, {"I5", "I10", "I23"}),
    (transaction_is_shown_in_part, {"I1", "I13", "I23"}),
    (one_topic_is_forgotten, {"I1", "I13", "I23"}),
    (offset_is_skipped, {"I23"}),
    (offset_is_taken_twice, {"I3", "I21"}),
    (body_is_altered, {"I16"}),
    (body_is_cut_to_null, {"I16"}),
    (tags_and_keys_change_places, {"I16"}),
    (queue_is_altered, {"I16", "I21", "I23"}),
    (message_id_is_altered, {"I16"}),
    (row_names_another_commit, {"I10"}),
    (dead_letters_are_missing_altogether, {"I19", "I23"}),
    (open_is_among_the_dead, {"I19"}),
    (dead_letter_names_another_life, {"I19"}),
    (dead_letter_comes_from_nowhere, {"I4"}),
    (queue_is_out_of_order, {"I14"}),
    (transaction_is_out_of_order, {"I14"}),
    (fact_has_no_half, {"I4"}),
    (complete_transaction_is_hidden_as_incomplete, {"I1", "I10", "I23"}),
    (contradicting_halves_are_shown, {"I5", "I10", "I23", "I28"}),
]


@pytest.mark.parametrize(
    ("plant", "expected"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_bug_is_found(
    made: HandMadeStore, plant: Callable[[HandMadeStore], None], expected: set[str]
) -> None:
    plant(made)

    assert broken(verify(made.location)) == expected


@pytest.mark.parametrize("plant", [rolled_back_is_shown, row_is_doubled, open_transaction_is_shown])
def test_what_is_shown_wrongly_is_found_while_running_too(
    made: HandMadeStore, plant: Callable[[HandMadeStore], None]
) -> None:
    plant(made)

    assert not verify(made.location, drained=False).is_clean


def test_a_violation_names_topic_queue_offset_and_message(made: HandMadeStore) -> None:
    rolled_back_is_shown(made)

    report = verify(made.location)

    assert rows_of(report, "I2") == [f"orders/0/4 {transaction_id(2)}:0"]
    assert report.violation_count == 2


def test_many_violations_are_counted_and_the_first_are_shown(empty: HandMadeStore) -> None:
    lost = [half for number in range(300) for half in halves(number, "orders")]
    empty.prepare(*lost)
    version = empty.claim(*[Op(number, "COMMIT") for number in range(300)])
    facts = [Settled(number, "COMMITTED", version, number) for number in range(300)]
    empty.settle(*facts, mark=version)

    (result,) = [r for r in verify(empty.location).results if r.invariant == "I1"]

    assert result.violation_count == 300
    assert len(result.violations) == 100


def test_halves_that_name_two_groups_are_ended_by_nobody(empty: HandMadeStore) -> None:
    first, second = halves(1, "orders", "orders")
    empty.prepare(first, Half(1, 1, "orders", group="strangers"))
    version = empty.claim(Op(1, "COMMIT", group=GROUP))
    empty.settle(Settled(1, "INCOMPLETE", version, reason="CONFLICT"), mark=version)
    assert verify(empty.location).is_clean

    empty.publish("orders", first, second, op_version=version)
    assert "I5" in broken(verify(empty.location))
