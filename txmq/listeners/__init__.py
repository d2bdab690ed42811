"""Who answers for a local transaction, and how they are asked."""
