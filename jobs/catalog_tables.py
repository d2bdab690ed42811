r"""Give topics and logs names in a schema of the catalog, until SIGTERM.

spark-submit --properties-file conf/spark-defaults.conf \
  jobs/catalog_tables.py LOCATION SCHEMA [--once]
"""

from txmq.job import run_catalog_job

if __name__ == "__main__":
    run_catalog_job()
