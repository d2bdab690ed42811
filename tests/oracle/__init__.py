"""The oracle of `verify`: a second checker in SQL on Spark, which shares no code with the first."""
