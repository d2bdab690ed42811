"""A broker in a process of its own: LOCATION READY with|without."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.endurance.mix.sender import GROUP, Listener
from txmq.check.recheck import RecheckJob
from txmq.ground.handles import ServiceHandle, ThreadHandle
from txmq.maintenance.service import Maintenance
from txmq.ops.broker import Broker, BrokerHandle, run_until_signal
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.spark.session import local_session
from txmq.store.store import Store

TURN_S = 0.05
CHECK_S = 2.0


class Turns(ThreadHandle):
    """A service without Spark, turn by turn."""

    def __init__(self, name: str, service: object, interval_s: float) -> None:
        super().__init__(name, interval_s)
        self._service = service
        self.begin()

    def _turn(self) -> None:
        self._service.run_once()  # type: ignore[attr-defined]


def without_spark(store: Store) -> BrokerHandle:
    services: dict[str, ServiceHandle] = {
        "publisher": Turns("publisher", Publisher(store), TURN_S),
        "recheck": Turns("recheck", RecheckJob(store, listeners={GROUP: Listener()}), CHECK_S),
        "delay service": DelayService(store).start(),
        "maintenance": Maintenance(store).start(),
    }
    return BrokerHandle(services)


def main(location: str, ready: str, spark: str) -> None:
    store = Store.open(location)

    def start() -> BrokerHandle:
        if spark == "with":
            session = local_session(for_minutes=True)
            handle = Broker(store, spark=session, listeners={GROUP: Listener()}).start()
        else:
            handle = without_spark(store)
        Path(ready).touch()
        return handle

    run_until_signal(start)


if __name__ == "__main__":
    main(*sys.argv[1:])
