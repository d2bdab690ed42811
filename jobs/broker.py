"""Run all services of a store in one driver, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf jobs/broker.py LOCATION
    [--once] [--metrics HOST:PORT]
"""

import sys

from txmq.job import run_broker_job

if __name__ == "__main__":
    sys.exit(run_broker_job())
