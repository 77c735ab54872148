"""A request that passed every check: what the scheduler gets, and what the reader's side must remember."""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.frontend.parsing.formats import AnswerFormat
from quire.frontend.stream.output_buffer import COST_PER_LOGPROB, COST_PER_TOKEN, OutputBuffer
from quire.frontend.text.stop_strings import StopMatcher
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto import api
from quire.proto.messages.media import Media
from quire.proto.messages.message import Task
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import Submit
from quire.proto.transport.wire import ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """The fields of one request after its checks, its tokenization and its defaults."""

    request_id: str
    model: str
    prompt: Sequence[int]
    params: SamplingParams
    n: int
    """Number of outputs that are drawn."""
    priority: int
    cache_salt: str
    adapter: str
    arrived: float
    """Monotonic time."""
    deadline: float
    """Monotonic time."""
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    return_prompt_token_ids: bool
    return_token_ids: bool
    answer_format: AnswerFormat | None = None
    """Format of a chat's answers; None: they are text."""
    num_best: int = 0
    """Number of outputs that are answered, the likeliest ones; 0: all are."""
    show_logprobs: bool = True
    """False where the client did not ask for the logprobs that are drawn."""
    task: Task = "generate"
    media: tuple[Media, ...] = ()
    """Items that stand in the prompt beside text; their files are there until the request has ended."""
    second_text: int = 0
    """Index of the prompt's first token of type 1, the second text of a pair; 0: it has none."""

    @property
    def num_candidates(self) -> int:
        """Number of logprobs that come with a token, its own among them."""
        params = self.params
        return 0 if params.logprobs < 0 else 1 + params.logprobs + len(params.logprob_token_ids)

    @property
    def step_bytes(self) -> int:
        """Bytes that one step adds to what is unread, without text: a token of every output, and its logprobs."""
        return self.n * (COST_PER_TOKEN + COST_PER_LOGPROB * self.num_candidates)

    @property
    def by_token(self) -> bool:
        """True where a delta is of one token: the logprobs of an answer that is parsed stand beside their parts."""
        return self.answer_format is not None and self.params.logprobs >= 0

    def submit(
        self,
        number: int,
        timeout_seconds: float,
        resumed: tuple[bytes, ...] = (),
        finished: tuple[int, ...] = (),
        accepted: bool = False,
    ) -> Submit:
        return Submit(
            number=number,
            label=self.request_id,
            prompt=ints(self.prompt),
            params=self.params,
            n=self.n,
            priority=self.priority,
            timeout_seconds=timeout_seconds,
            cache_salt=self.cache_salt,
            adapter=self.adapter,
            resumed=resumed,
            finished_outputs=finished,
            task=self.task,
            accepted=accepted,
            media=self.media,
            second_text=self.second_text,
        )

    def output(self, index: int, tokenizer: TextTokenizer) -> OutputBuffer:
        stops = StopMatcher(self.stop, self.include_stop) if self.stop else None
        shown = self.answer_format.markers if self.answer_format is not None else frozenset[str]()
        detokenizer = tokenizer.detokenizer(self.skip_special_tokens, shown)
        return OutputBuffer(index, detokenizer, stops, self.params.min_tokens)

    def started(self) -> api.Started:
        ids = list(self.prompt) if self.return_prompt_token_ids else ()
        return api.Started(self.request_id, self.model, len(self.prompt), ids)
