"""What `make bench` measures: txmq beside a bare Delta-to-Delta stream, in the same run."""
