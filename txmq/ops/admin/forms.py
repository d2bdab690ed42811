"""The class that describes the value of each register of a store; its own room knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txmq.check.round import LeaseValue
from txmq.consumer.group import GroupValue
from txmq.listeners.remote import Requests
from txmq.ops.admin.dead_letter_notes import DeadLettersValue
from txmq.publish.delay_service import DelayValue
from txmq.publish.progress import PublishProgress
from txmq.store.brokers import BrokersValue
from txmq.store.known import MaintenanceValue
from txmq.store.set_aside import SetAsideTransactions
from txmq.store.tables import CONSUMER_GROUP, DEAD_LETTERS, REMOTE
from txmq.store.topic_settings import TopicsValue

_FORMS: Mapping[str, Any] = {
    "brokers": BrokersValue,
    "check_lease": LeaseValue,
    # Settings are checked by themselves, key by key.
    "config": None,
    "delay": DelayValue,
    "maintenance": MaintenanceValue,
    "publisher": PublishProgress,
    "set_aside": SetAsideTransactions,
    "topics": TopicsValue,
}
_FORMS_OF_GROUPS: Mapping[str, Any] = {
    CONSUMER_GROUP: GroupValue,
    DEAD_LETTERS: DeadLettersValue,
    REMOTE: Requests,
}


def form_of(register: str) -> Any:
    """Return the class that describes the value of a register; None for one without a form.

    Raises: KeyError for a name that no register has.
    """
    of_groups = (form for prefix, form in _FORMS_OF_GROUPS.items() if register.startswith(prefix))
    return next(of_groups, None) or _FORMS[register]
