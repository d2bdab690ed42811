"""All that Spark does here: sessions, sends, streams, the deadline join, large copies, catalogs."""
