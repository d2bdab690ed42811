"""Transactional messages for the lakehouse: visible if and only if the local transaction took place."""

__version__ = "0.1.0"
