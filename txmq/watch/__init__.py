"""Tells what the services of a broker do, in the log of their process."""
