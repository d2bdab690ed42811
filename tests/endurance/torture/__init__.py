"""A store under fire: seeded rounds of producers and services that are killed at fail points."""
