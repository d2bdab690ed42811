"""Commands of the CLI to copy: what an operator does is done there, with a reason. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from txmq.errors import TopicBehindError
from txmq.lifecycle import TransactionState
from txmq.message.names import namespace_of, unwrapped
from txmq.printable import printable

WHY = "WHY"


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell, and what it does.

    Attributes:
        is_changing: whether it changes the store; without `--apply` it only shows what it would do.
        acts_at_once: whether it changes the store as it is copied.
    """

    purpose: str
    text: str
    is_changing: bool = False
    acts_at_once: bool = False


def word(text: str) -> str:
    """The text as one word of a shell, made of printable characters alone.

    What a terminal could obey is written as escapes ($'…' of bash and zsh).
    """
    if printable(text) == text and text.isprintable():
        return shlex.quote(text)
    escaped = "".join(_escaped(character) for character in text)
    return f"$'{escaped}'"


# These have no dry run.
_AT_ONCE = frozenset({"recheck", "maintenance", "serve"})


def txmq(purpose: str, *words: str, is_changing: bool = False, reason: str | None = WHY) -> Command:
    """A call of `txmq`; each word is quoted. Changes get a reason and wait for `--apply`."""
    given = ("--reason", reason) if is_changing and reason else ()
    text = " ".join(["txmq", *map(word, (*words, *given))])
    return Command(purpose, text, is_changing, words[0] in _AT_ONCE)


def of_transaction(
    location: str, transaction_id: str, state: TransactionState | None, *, is_set_aside: bool
) -> list[Command]:
    """What can be done about a transaction in this state."""
    named = (location, transaction_id)
    if is_set_aside:
        purpose = "Give its unreadable messages up"
        return [txmq(purpose, "resolve", *named, "--give-up", is_changing=True)]
    commit = txmq("Commit it", "resolve", *named, "--commit", is_changing=True)
    rollback = txmq("Roll it back", "resolve", *named, "--rollback", is_changing=True)
    resume = txmq("Ask its listener again", "resume", *named, is_changing=True)
    of_state = {
        TransactionState.PENDING: [
            recheck(location), commit, rollback,
        ],
        TransactionState.DISCARDED: [resume],
        TransactionState.INCOMPLETE: [resume, rollback],
    }  # fmt: skip
    return of_state.get(state, []) if state else []


def of_delayed(location: str, message_id: str, stored_group: str) -> list[Command]:
    """What can be done about a message that waits for its time."""
    namespace = namespace_of(stored_group)
    within = () if namespace is None else ("--namespace", namespace)
    purpose = "Whether it can be taken back; without --dry-run it is"
    group = unwrapped(stored_group)
    return [txmq(purpose, "recall", location, message_id, "--group", group, *within, "--dry-run")]


def recheck(location: str) -> Command:
    """Ask the listeners, which without a settings file are live producers alone."""
    purpose = "Ask all due listeners now; --config FILE names those of a broker's settings file"
    return txmq(purpose, "recheck", location)


def of_topic(location: str, topic: str, *, parked: str | None) -> list[Command]:
    """What can be done about a topic; `parked` is why it is, if it is."""
    read = txmq("Read it", "consume", location, topic, "--follow")
    settings = txmq("Its settings", "topics", "describe", location, topic)
    rebuild = txmq("Compare it with half and settled", "rebuild-topic", location, topic)
    if parked is None:
        return [read, settings, rebuild]
    if parked.startswith(TopicBehindError.__name__):
        return [rebuild, settings]
    # Its rows are all there: what keeps it from being written is elsewhere.
    return [txmq("Look for what ails it", "doctor", location), rebuild, settings]


def of_group(location: str, group: str, topics: list[str]) -> list[Command]:
    """What can be done about a consumer group."""
    named = ("--group", group)
    resets = [
        txmq(f"Move it to the end of {topic}", "offsets", "reset", location, group,
             "--topic", topic, "--to", "last", is_changing=True, reason=None)
        for topic in topics[:1]
    ]  # fmt: skip
    return [
        txmq("Its lag by queue", "lag", location, *named),
        *resets,
        txmq("Its dead letters", "dead-letters", "list", location, *named),
    ]


def of_dead_letters(location: str, group: str) -> list[Command]:
    """Send all dead letters of a group again, or hide them."""
    named = (location, "--group", group, "--all")
    return [
        txmq("Send all of them again", "dead-letters", "replay", *named, is_changing=True),
        txmq("Hide all of them for good", "dead-letters", "purge", *named, is_changing=True),
    ]


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
