"""A local Spark session, and the Java and jars that it needs."""
