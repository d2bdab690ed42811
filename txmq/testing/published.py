"""What readers of a topic see, for tests."""

from __future__ import annotations

from txmq.consumer.peek import TopicPeek
from txmq.message.names import stored_topic
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store


def published_messages(store: Store, topic: str) -> list[ReceivedMessage]:
    """All visible messages of a topic, in the order in which they became visible.

    Reads: the topic. Commits: 0.

    Args:
        store: the store of the topic.
        topic: its name; in a namespace its stored name. `%RETRY%group` and `%DLQ%group` are topics
            too.

    Returns:
        The messages as consumers get them; none where nothing was published to this topic.

    Raises: InvalidNameError, StorageError.
    """
    stored = stored_topic(topic)
    if stored not in store.topics():
        return []
    table = store.tables.table_at(f"topics/{stored}")
    rows = table.read(table.files(), ["message_id", "op_version", "sequence"]).to_pylist()
    places = {row["message_id"]: (row["op_version"], row["sequence"]) for row in rows}
    messages = TopicPeek(store, stored).messages()
    return sorted(messages, key=lambda message: (*places[message.message_id], message.message_id))
