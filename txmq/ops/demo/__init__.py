"""The demo: a day at three airports."""
