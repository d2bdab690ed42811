"""An example: says whether an order was saved, by its row in a table of the catalog."""

from __future__ import annotations

from txmq import QueryListener

ORDERS = "main.shop.orders"
# Longer than any job that saves orders runs: a row that is not there by then never comes.
ROLLBACK_AFTER_S = 6 * 3600.0


class OrderListener(QueryListener):
    """COMMIT if an order has the id of the transaction, ROLLBACK only after ROLLBACK_AFTER_S."""

    def __init__(self) -> None:
        """Ask nothing yet; the job that asks has a session."""
        super().__init__(
            f"SELECT transaction_id FROM {ORDERS}",  # noqa: S608 - a name of this file
            key="transaction_id",
            rollback_after_s=ROLLBACK_AFTER_S,
        )
