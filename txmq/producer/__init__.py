"""Sending: half messages, local transactions, ends, ordinary and delayed messages."""
