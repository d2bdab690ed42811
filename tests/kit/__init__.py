"""Worlds, builders, processes and databases that tests share."""
