"""Run all services of a store in one driver, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf jobs/broker.py LOCATION [--once]
"""

import sys

from txmq import Broker
from txmq.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("broker", lambda store, spark: Broker(store, spark=spark)))
