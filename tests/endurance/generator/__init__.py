"""A generator of faults that nobody listed: each run is a seed, and callers' answers are held
against what readers saw."""
