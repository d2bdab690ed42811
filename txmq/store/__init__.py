"""A store: its settings, its logs, its registers, each as a table."""
