"""Registers the tables of a store in a catalog of Spark, so that people read them by name."""
