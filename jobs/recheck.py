"""Ask the listeners about all due transactions, once; for schedulers, needs no stream, no Spark.

python jobs/recheck.py LOCATION, or spark-submit jobs/recheck.py LOCATION
"""

from txmq import RecheckJob
from txmq.job import run_batch_job

if __name__ == "__main__":
    run_batch_job("recheck", RecheckJob)
