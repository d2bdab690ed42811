"""The wheel alone, in an empty environment, under each Python that txmq supports."""
