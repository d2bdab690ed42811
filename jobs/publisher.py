"""Settle claims and publish messages, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf jobs/publisher.py LOCATION [--once]
"""

from txmq import Publisher
from txmq.job import run_job

if __name__ == "__main__":
    run_job("publisher", lambda store, spark: Publisher(store, spark=spark))
