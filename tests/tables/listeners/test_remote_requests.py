"""Who takes which question: the rules that members and check service share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import CommitRefusedError
from txmq.listeners.remote import (
    MEMBER_SILENCE_MAX_S,
    RemoteAnswer,
    RemoteQuestion,
    RemoteRequests,
    Requests,
    requests_in,
)
from txmq.store.store import Store

NOW_MS = 1_800_000_000_000
COMMIT, ROLLBACK = RemoteAnswer("COMMIT", None), RemoteAnswer("ROLLBACK", None)


def round_of(count: int, *members: str, sender: str | None = None) -> Requests:
    asked = {f"t{number}": RemoteQuestion(0, sender) for number in range(count)}
    requests = Requests().begun("round", asked)
    for member in members:
        requests = requests.joined(member, NOW_MS)
    return requests


def free(requests: Requests, client: str, **options: object) -> list[str]:
    given = {"after_others": True, "lost": (), **options}
    return requests.free_for(client, **given)  # type: ignore[arg-type]


def test_members_share_what_is_free() -> None:
    requests = round_of(9, "a", "b", "c")

    first = free(requests, "a")
    assert first == ["t0", "t1", "t2"]
    second = free(requests.taken_by("a", first), "b")
    assert second == ["t3", "t4"]


def test_sender_takes_all_of_its_own_at_once() -> None:
    requests = round_of(9, "a", "b", sender="a")

    assert free(requests, "a", after_others=False) == list(requests.asked)


def test_others_wait_for_a_sender_that_lives() -> None:
    requests = round_of(4, "a", "b", sender="a")

    assert free(requests, "b", after_others=False) == []
    assert free(requests, "b", after_others=True) == ["t0", "t1"]


def test_nobody_waits_for_a_sender_that_is_gone() -> None:
    requests = round_of(4, "b", sender="a")

    assert free(requests, "b", after_others=False) == ["t0", "t1", "t2", "t3"]


def test_question_is_taken_once_until_it_is_lost() -> None:
    requests = round_of(1, "a", "b").taken_by("a", ["t0"])

    assert free(requests, "b") == []
    assert free(requests, "b", lost=["t0"]) == ["t0"]


def test_answer_of_one_that_lost_its_question_changes_nothing() -> None:
    requests = round_of(1, "a", "b").taken_by("a", ["t0"])
    takes = {"t0": requests.taken["t0"]}
    later = requests.taken_by("b", ["t0"])

    assert later.answered(takes, {"t0": COMMIT}) == later
    answered = later.answered({"t0": later.taken["t0"]}, {"t0": ROLLBACK})
    assert answered.answers == {"t0": ROLLBACK}
    assert answered.answered({"t0": later.taken["t0"]}, {"t0": COMMIT}) == answered


def test_same_client_that_took_it_twice_answers_for_the_second_take() -> None:
    requests = round_of(1, "a").taken_by("a", ["t0"])
    first = {"t0": requests.taken["t0"]}
    again = requests.taken_by("a", ["t0"])

    assert again.taken["t0"] != first["t0"]
    assert again.answered(first, {"t0": COMMIT}).answers == {}


def test_what_a_leaving_member_had_is_free() -> None:
    requests = round_of(2, "a", "b").taken_by("a", ["t0", "t1"]).left("a")

    assert free(requests, "b") == ["t0", "t1"]


def test_member_that_has_long_been_silent_is_none() -> None:
    requests = Requests().joined("a", NOW_MS)
    later_ms = NOW_MS + round(MEMBER_SILENCE_MAX_S * 1000) + 1

    assert requests.member_count(NOW_MS) == 1
    assert requests.member_count(later_ms) == 0
    assert set(requests.joined("b", later_ms).members) == {"b"}


def test_next_round_keeps_the_members_and_nothing_else() -> None:
    requests = round_of(2, "a").taken_by("a", ["t0"])

    after = requests.begun("next", {"t9": RemoteQuestion(1, None)})
    assert (after.round_id, set(after.asked), after.taken) == ("next", {"t9"}, {})
    assert after.members == requests.members
    assert after.over("round") == after
    assert after.over("next").asked == {}


@given(st.data())
def test_whatever_members_do_each_question_has_one_answer(data: st.DataObject) -> None:
    requests = round_of(data.draw(st.integers(1, 6)), "a", "b", "c")
    held: dict[str, dict[str, tuple[str, int]]] = {"a": {}, "b": {}, "c": {}}
    first: dict[str, RemoteAnswer] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        client = data.draw(st.sampled_from("abc"))
        if data.draw(st.booleans()):
            lost = data.draw(st.lists(st.sampled_from(list(requests.asked))))
            keys = free(requests, client, lost=lost)
            requests = requests.taken_by(client, keys)
            held[client] |= {key: requests.taken[key] for key in keys}
        else:
            told = {
                key: RemoteAnswer("COMMIT", f"{client} {take}")
                for key, take in held[client].items()
            }
            requests = requests.answered(held[client], told)
        for key, answer in requests.answers.items():
            assert first.setdefault(key, answer) == answer
            assert answer.reason == f"{requests.taken[key][0]} {requests.taken[key]}"


# --- in the store -----------------------------------------------------------------------------


def test_value_comes_back_as_it_was(store: Store) -> None:
    requests = requests_in(store, "orders", create=True)
    full = round_of(2, "a", sender="a").taken_by("a", ["t0"])
    full = full.answered({"t0": ("a", 1)}, {"t0": COMMIT})
    requests.change(lambda _: full, NOW_MS)

    assert requests_in(store, "orders").read() == full


def test_group_without_members_has_no_table(store: Store) -> None:
    assert not requests_in(store, "orders").exists
    requests_in(store, "orders", create=True)
    assert requests_in(store, "orders").exists
    assert "state/remote_orders" in store.tables.table_paths()


def test_change_that_changes_nothing_is_no_commit(store: Store) -> None:
    requests = requests_in(store, "orders", create=True)
    requests.change(lambda now: now.joined("a", NOW_MS), NOW_MS)
    version = requests._register.table.refresh().version

    requests.change(lambda now: now.joined("a", NOW_MS), NOW_MS)

    assert requests._register.table.refresh().version == version


def test_change_is_made_again_on_what_others_wrote(store: Store) -> None:
    ours = requests_in(store, "orders", create=True)
    theirs = requests_in(store, "orders")
    seen: list[Requests] = []

    def join(now: Requests) -> Requests:
        if not seen:
            theirs.change(lambda other: other.joined("b", NOW_MS), NOW_MS)
        seen.append(now)
        return now.joined("a", NOW_MS)

    assert set(ours.change(join, NOW_MS).members) == {"a", "b"}
    assert len(seen) == 2


def test_change_gives_up_where_others_always_win(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_in(store, "orders", create=True)

    def refused(*_: object) -> None:
        raise CommitRefusedError("register", "always")

    monkeypatch.setattr(requests._register, "swap", refused)
    with pytest.raises(CommitRefusedError, match="other processes were faster"):
        requests.change(lambda now: now.joined("a", NOW_MS), NOW_MS)


def test_requests_are_shared_by_name(store: Store) -> None:
    assert isinstance(requests_in(store, "orders"), RemoteRequests)
