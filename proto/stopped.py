"""What long work raises when nobody waits for its result any more."""


class Stopped(Exception):
    """Raised between two steps, once the caller is gone: nobody sees it."""
