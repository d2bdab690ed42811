"""Ask the listeners about due transactions: one streaming query, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf jobs/check_service.py LOCATION [--once]
"""

from txmq import CheckService
from txmq.job import run_job

if __name__ == "__main__":
    run_job("check_service", lambda store, spark: CheckService(store, spark=spark))
