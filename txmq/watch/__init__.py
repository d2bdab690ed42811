"""Tells what the services of a broker do, in the log; and which brokers there are."""
