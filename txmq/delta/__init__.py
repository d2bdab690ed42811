"""Delta tables, their files and their logs; only this package uses delta-rs."""
