"""What a message is: names, ids, bodies, filters. Pure; reads and writes nothing."""
