"""Requests on their way: the line to the scheduler, and what comes back over it."""
