"""The budget of bytes for large answers, over all connections: who does not read holds what was made for him.

An answer counts from before it is encoded until its last piece has left, or its connection is gone.
"""

from quire.proto.api import RequestError

MAX_BYTES = 512 << 20
"""Most bytes of all; one answer alone always finds room, since every call is bounded for itself."""
RETRY_SECONDS = 1.0


class Answer:
    """The bytes that one answer holds of the budget."""

    def __init__(self, budget: "AnswerBudget") -> None:
        self.held = 0
        self._budget = budget

    def resize(self, num_bytes: int) -> None:
        """Hold so many bytes. Raises `RequestError` (QUEUE_FULL) when there is no room for them."""
        others = self._budget.used - self.held
        if others and others + num_bytes > self._budget.max_bytes:
            message = f"answers of {others} bytes wait here for their readers; at most {self._budget.max_bytes} may"
            raise RequestError("QUEUE_FULL", message, retry_after_seconds=RETRY_SECONDS)
        self._budget.used = others + num_bytes
        self.held = num_bytes

    def free(self) -> None:
        """Give all its bytes back."""
        self._budget.used -= self.held
        self.held = 0


class AnswerBudget:
    """One per frontend, touched by the event loop only."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.used = 0
        self.max_bytes = max_bytes

    def answer(self, num_bytes: int) -> Answer:
        """An answer that may have so many bytes. Raises `RequestError` (QUEUE_FULL) when there is no room for it."""
        answer = Answer(self)
        answer.resize(num_bytes)
        return answer
