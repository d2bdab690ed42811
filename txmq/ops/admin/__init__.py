"""What operators do: status, queries, claims by hand, topics, dead letters."""
