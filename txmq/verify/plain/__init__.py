"""The first engine: delta-rs, Arrow and plain Python."""
