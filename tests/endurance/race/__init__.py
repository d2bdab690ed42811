"""Each local transaction races the check that asks about it; message and row must agree."""
