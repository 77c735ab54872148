"""Errors that the core raises: never because of a request, only because of a bug of ours or a broken worker group."""


class InvariantError(RuntimeError):
    """A rule that must hold between two events does not. `rule` is its id (I1, I2, ...), `detail` the finding."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class ResultError(RuntimeError):
    """A worker's result does not fit its plan; nothing was changed. The group must be replaced."""
