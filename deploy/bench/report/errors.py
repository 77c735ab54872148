"""Why a bench could not run or cannot be believed."""


class BenchError(RuntimeError):
    """Printed as one line; `quire bench` then exits with 1. Names what to change where a person can."""
