"""The race of a local transaction against its check, as processes that are killed (`make endurance`)."""
