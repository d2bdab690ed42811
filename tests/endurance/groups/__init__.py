"""Consumer groups whose members die, sleep, come and go: each message has one effect, in order."""
