"""Deliver the due messages of the schedule, until SIGTERM; needs no Spark.

python jobs/delay_service.py LOCATION [--once], or spark-submit jobs/delay_service.py LOCATION
"""

from txmq import DelayService
from txmq.job import run_plain_job

if __name__ == "__main__":
    run_plain_job("delay-service", DelayService)
