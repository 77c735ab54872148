"""Requests of `/v1/chat/completions`, and what they mean as `api.GenerateRequest`."""

from quire.frontend.http.openai.chat_fields import ChatFields, ChatTurn
from quire.proto import api
from quire.proto.messages.params import ParameterError


class ChatRequest(ChatFields, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatTurn]

    def chat(self) -> api.Chat:
        """Raises `ParameterError`."""
        return self.chat_of(self.messages)

    def request(self, label: str) -> api.GenerateRequest:
        """`label`: for a request that names none. Raises `ParameterError`."""
        if self.echo:
            raise ParameterError("echo", "is not supported for a chat; remove it", "UNSUPPORTED")
        if self.top_logprobs is not None and not self.logprobs:
            raise ParameterError("top_logprobs", "needs logprobs; set logprobs to true or remove it")
        return self.generate_request(
            self.chat(),
            request_id=label if self.request_id is None else self.request_id,
            max_tokens=self._most_tokens(),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            include_reasoning=self.include_reasoning,
            return_token_ids=bool(self.return_token_ids or self.usage_always),
        )

    def _most_tokens(self) -> int | None:
        self.take_aliases()
        new, old = self.max_completion_tokens, self.max_tokens
        if new is not None and old is not None and new != old:
            message = f"is {old!r:.64}, but max_completion_tokens is {new!r:.64}; set only one of them"
            raise ParameterError("max_tokens", message)
        return old if new is None else new
