"""Finding transactions without an end, and asking their listeners."""
