"""Reading topics: groups, pull and Spark members, streams, retries."""
