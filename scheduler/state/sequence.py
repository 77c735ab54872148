"""Requests and their outputs. An output is a `Sequence` with a state of its own: waiting, running, finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from quire.proto.messages.message import Usage
from quire.proto.messages.params import SamplingParams
from quire.proto.prefix_key import Placeholders
from quire.proto.transport.wire import Int32
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.request_log import MAX_DETAIL, EntryKind, LogEntry, OutputLog

if TYPE_CHECKING:
    from quire.proto.messages.media import Media
    from quire.scheduler.state.prefix import PrefixEntry

State = Literal["waiting", "running", "finished"]

TRANSITIONS: Final[dict[State, tuple[State, ...]]] = {
    "waiting": ("running", "finished"),
    "running": ("waiting", "finished"),
    "finished": (),
}
"""States that may follow each. running -> waiting: preempted, misled, or its worker group died."""
_NO_BLOCKS: Final[frozenset[int]] = frozenset()


class Frontend:
    """A connected frontend with live requests. `index` stands for it in arrays."""

    __slots__ = ("identity", "index", "requests")

    def __init__(self, identity: bytes, index: int) -> None:
        self.identity = identity
        self.index = index
        self.requests: dict[int, Request] = {}


class Request:
    """A submitted request and its outputs. `sequences` is emptied when the last one has ended."""

    __slots__ = (
        "adapter",
        "arrival",
        "arrived_at",
        "cache_salt",
        "deadline",
        "frontend",
        "label",
        "media",
        "num_live",
        "num_waiting",
        "number",
        "params",
        "placeholders",
        "priority",
        "prompt",
        "quiet_params",
        "second_text",
        "sequences",
        "stop_ids",
    )

    def __init__(
        self,
        frontend: Frontend,
        number: int,
        label: str,
        prompt: Int32,
        params: SamplingParams,
        *,
        arrival: int,
        arrived_at: float,
        deadline: float,
        priority: int = 0,
        cache_salt: str = "",
        adapter: str = "",
        placeholders: tuple[Placeholders, ...] = (),
        media: tuple[Media, ...] = (),
        second_text: int = 0,
    ) -> None:
        self.frontend = frontend
        self.number = number
        self.label = label
        self.prompt = prompt
        self.params = params
        self.quiet_params = params
        if params.prompt_logprobs >= 0:
            named = params.logprob_token_ids if params.logprobs >= 0 else ()
            self.quiet_params = msgspec.structs.replace(params, prompt_logprobs=-1, logprob_token_ids=named)
        self.stop_ids = frozenset(params.stop_token_ids)
        self.arrival = arrival
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.priority = priority
        self.cache_salt = cache_salt
        self.adapter = adapter
        self.placeholders = placeholders
        """Stretches of the prompt whose tokens stand for something else; part of the identity of their blocks."""
        self.media = media
        """Items to encode, one for each of `placeholders`."""
        self.second_text = second_text
        """Index of the prompt's first token of type 1; 0: it has none."""
        self.sequences: list[Sequence] = []
        self.num_live = 0
        self.num_waiting = 0

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def limit(self) -> int:
        """Tokens, prompt included, after which an output has its full length."""
        return len(self.prompt) + self.params.max_tokens

    @property
    def stop_from(self) -> int:
        """Tokens, prompt included, before which no stop token ends an output."""
        return len(self.prompt) + self.params.min_tokens


class Awaited(NamedTuple):
    """A prompt under way for which a waiting output waits, to share what it will write."""

    owner: Sequence
    num_common: int
    """Tokens of the full blocks that both begin with."""
    num_scheduled: int
    """Tokens of the owner that were planned when it was looked at last."""
    step: int
    """Number of the newest plan sent then."""


class Sequence:
    """One output. While it runs, its tokens and counts live in the arrays of `Running`, at `slot`."""

    __slots__ = (
        "awaited",
        "borrowed",
        "cached_tokens",
        "entries",
        "first_ran_at",
        "first_token_at",
        "log",
        "next_prompt_logprob",
        "num_behind",
        "num_known",
        "num_preemptions",
        "num_restarts",
        "num_shared",
        "output_index",
        "parts",
        "request",
        "roots",
        "slot",
        "stalled_at",
        "state",
        "tables",
        "tokens",
        "was_misled",
        "was_passed",
    )

    def __init__(self, request: Request, output_index: int, tokens: Int32) -> None:
        self.request = request
        self.output_index = output_index
        self.tokens = tokens
        """Prompt and emitted tokens; current only while waiting."""
        self.num_known = len(tokens)
        """Number of known tokens; current only while not running."""
        self.state: State = "waiting"
        self.slot = -1
        self.tables: list[list[int]] = []
        """Blocks by KV group, at their places in the output; empty while not running."""
        self.num_behind: list[int] = []
        """By KV group, blocks at the beginning of its table that were given back: its window has passed them."""
        self.roots: list[PrefixEntry] = []
        """By KV group, what the entries begin with; empty where nothing may be cached."""
        self.entries: list[list[PrefixEntry]] = []
        """By KV group, prefix-cache entries of the leading blocks, as far as they are published or planned."""
        self.num_shared = 0
        """Tokens whose blocks held others' content when it entered its slot."""
        self.borrowed: frozenset[int] = _NO_BLOCKS
        """Blocks that it shares, or has a copy of, since before they were proven."""
        self.awaited: Awaited | None = None
        """The prompt that it waits for, while it waits to share it."""
        self.stalled_at = -1
        """Token at which its log says that it waits for encoder memory."""
        self.parts: list[bytes] = []
        """Its vectors so far, of which each token has one; what runs anew begins without."""
        self.first_ran_at = -1.0
        self.first_token_at = -1.0
        self.cached_tokens = 0
        self.next_prompt_logprob = 1
        """The prompt position whose logprob is delivered next; the first token has none."""
        self.num_preemptions = 0
        self.num_restarts = 0
        self.was_misled = False
        """Blocks that it borrowed were no numbers: it shares only proven ones from now on."""
        self.was_passed = False
        """Its prompt runs whole, it was the oldest, and a step was given to shorter ones."""
        self.log = OutputLog()

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: the lower runs first and is preempted last."""
        return self.request.priority, self.request.arrival, self.output_index

    @property
    def wants_prompt_logprobs(self) -> bool:
        request = self.request
        wanted = self.output_index == 0 and request.params.prompt_logprobs >= 0
        return wanted and self.next_prompt_logprob < request.num_prompt

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, of all KV groups."""
        return sum(map(len, self.tables)) - sum(self.num_behind)

    @property
    def held_blocks(self) -> list[list[int]]:
        """Blocks that it holds, by KV group."""
        return [table[behind:] for table, behind in zip(self.tables, self.num_behind, strict=True)]

    @property
    def blocks_in_words(self) -> str:
        """The number of these, and where there are several KV groups each of them."""
        counts = [len(held) for held in self.held_blocks]
        return f"{sum(counts)} blocks" + (f" ({' + '.join(map(str, counts))})" if len(counts) > 1 else "")

    def move(self, state: State) -> None:
        """Change the state. Raises `InvariantError` for a change that `TRANSITIONS` does not have."""
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(
                "I8", f"output {self.request.number}/{self.output_index} cannot go from {self.state} to {state}"
            )
        self.state = state

    def note(self, now: float, kind: EntryKind, num_tokens: int, detail: str = "") -> None:
        """Log something that happened to the output."""
        self.log.add(LogEntry(now - self.request.arrived_at, kind, num_tokens, detail[:MAX_DETAIL]))

    def note_chunk(self, now: float, num_tokens: int, seconds: float) -> None:
        """Log a chunk of its prompt that was computed in a step of so many seconds."""
        self.log.add(LogEntry(now - self.request.arrived_at, "chunk", num_tokens, "", 1, seconds))

    def clear_memory(self) -> None:
        """Drop its tables and what was made with them: blocks are given back, or their worker group is gone."""
        self.tables = []
        self.parts = []
        self.num_behind = []
        self.entries = []
        self.roots = []
        self.num_shared = 0
        self.borrowed = _NO_BLOCKS
        self.awaited = None

    def usage(self, now: float) -> Usage:
        arrived = self.request.arrived_at
        ran = self.first_ran_at if self.first_ran_at >= 0 else now
        first = self.first_token_at if self.first_token_at >= 0 else now
        return Usage(
            prompt_tokens=self.request.num_prompt,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_known - self.request.num_prompt,
            queue_seconds=ran - arrived,
            prefill_seconds=first - ran,
            decode_seconds=now - first,
            num_preemptions=self.num_preemptions,
            num_restarts=self.num_restarts,
        )
