"""What every room uses and knows nothing of messages: clocks, columns, handles, fail points."""
