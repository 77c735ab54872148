"""The exception of long work whose result nobody waits for any more."""


class Stopped(Exception):
    """Raised between two steps, once the caller is gone: nobody sees it."""
