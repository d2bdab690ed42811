"""Ask the listeners about all due transactions, once; for schedulers, needs no stream, no Spark.

python jobs/recheck.py LOCATION, or spark-submit jobs/recheck.py LOCATION [--spark]
"""

from txmq.job import run_recheck_job

if __name__ == "__main__":
    run_recheck_job()
