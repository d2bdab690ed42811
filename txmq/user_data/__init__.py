"""What txmq writes into a user's own tables and databases: markers, fences, inbox rows."""
