"""Compact tables, clean logs and remove old days, once; for schedulers, needs no Spark.

python jobs/maintenance.py LOCATION, or spark-submit jobs/maintenance.py LOCATION
"""

from txmq import Maintenance
from txmq.job import run_batch_job

if __name__ == "__main__":
    run_batch_job("maintenance", Maintenance)
