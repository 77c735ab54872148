"""Routes of quire's own, and those that other servers have in common."""
