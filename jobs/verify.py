"""Check every promise of a store once, and fail if one is broken; for schedulers, needs no Spark.

python jobs/verify.py LOCATION, or spark-submit jobs/verify.py LOCATION
"""

from txmq.job import run_verify_job

if __name__ == "__main__":
    run_verify_job()
