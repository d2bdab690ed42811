"""Settle, publish, deliver: claims become facts, facts become visible messages."""
