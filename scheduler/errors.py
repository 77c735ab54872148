"""What the core raises. Never because of a request: only because of a bug of ours or a broken worker group."""


class InvariantError(RuntimeError):
    """A rule that must hold between two events does not. `rule` is its id (I1, I2, ...), `story` what was found."""

    def __init__(self, rule: str, story: str) -> None:
        super().__init__(f"{rule}: {story}")
        self.rule = rule
        self.story = story


class ResultError(RuntimeError):
    """A worker's result does not fit its plan; nothing was changed. The group must be replaced."""
