"""Reads a store and judges it with delta-rs, Arrow and numpy, a range of transactions at a time."""
