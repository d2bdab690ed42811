"""What people run and look at: the broker, commands, pages, figures, backups, the demo."""
