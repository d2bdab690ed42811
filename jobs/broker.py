"""Run all services of a store in one driver, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf jobs/broker.py LOCATION
    [--once] [--no-spark] [--metrics HOST:PORT]
"""

from txmq.job import run_broker_job

if __name__ == "__main__":
    run_broker_job()
