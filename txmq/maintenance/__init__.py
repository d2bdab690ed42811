"""Keeps tables small: compaction, log clean-up, retention, orphaned files."""
