"""Copies a live store, and makes a store of such a copy."""
