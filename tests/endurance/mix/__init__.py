"""Messages of every kind at once, while brokers are killed: each once, none early, in order."""
