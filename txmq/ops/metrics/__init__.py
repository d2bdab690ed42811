"""The figures of a store and of its broker, and their health, for Prometheus and OpenTelemetry."""
