"""Who answers for a local transaction, how they are asked, and what hooks hear of it."""
