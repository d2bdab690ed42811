"""The second engine: SQL on Spark."""
