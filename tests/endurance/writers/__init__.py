"""Many writers of one table against each other, and other engines that read it meanwhile."""
