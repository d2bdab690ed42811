"""The version of txmq, for who may not import the whole of it."""

__version__ = "0.2.0"
