"""Reading topics: groups and their members, offsets, handlers, retries, dead letters."""
