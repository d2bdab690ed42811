"""A web page over a store: rates, open transactions, topics, groups, dead letters. Read-only."""
