"""Whether a grammar compiles, found out in a process that can be killed; what was found is kept."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox.grammar_child import GrammarSetup, Verdict
from quire.frontend.sandbox.parent import Sandbox, SandboxCrashed, SandboxTimeout
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.requests import ModelFacts

MODULE = "quire.frontend.sandbox.grammar_child"
MAX_KEPT_BYTES = 4 << 20
ENTRY_BYTES = 256
"""What a verdict without a message takes."""
SUSPICION_SECONDS = 60.0
"""How long what was stopped or crashed is not tried again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    verdict: Verdict
    until: float

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + len(self.verdict.message)


class GrammarChecker:
    """The verdicts, and the process that finds them, which starts with the first grammar."""

    def __init__(self, config: FrontendConfig) -> None:
        self._config = config
        self._setup: GrammarSetup | None = None
        self._sandbox: Sandbox | None = None
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._num_bytes = 0
        self._asked: dict[bytes, asyncio.Task[Verdict]] = {}

    async def check(self, structured: Structured, facts: ModelFacts, field: str = "structured") -> None:
        """Raises `ParameterError` on `field` when it does not compile within the limits.

        Raises `RequestError` where the process fails by itself: that is no verdict, and the next try may find one.
        """
        await self._follow(facts)
        payload = msgspec.msgpack.encode(structured)
        key = hashlib.sha256(payload).digest()
        verdict = self._recall(key)
        if verdict is None:
            asked = self._asked.get(key)
            if asked is None:
                asked = self._asked[key] = asyncio.create_task(self._ask(key, payload, structured.kind))
                asked.add_done_callback(lambda task: self._answered(key, task))
            verdict = await asyncio.shield(asked)
        if verdict.reason:
            raise ParameterError(field, verdict.message, verdict.reason)

    async def close(self) -> None:
        """End the process."""
        if self._sandbox is not None:
            await self._sandbox.close()

    async def _follow(self, facts: ModelFacts) -> None:
        """Verdicts are of one model: another one (the engine restarted with it) starts anew."""
        setup = GrammarSetup(self._config.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)
        if setup == self._setup:
            return
        old, self._setup = self._sandbox, setup
        self._sandbox = Sandbox(
            MODULE, msgspec.msgpack.encode(setup), memory_bytes=self._config.grammar_memory_bytes
        )  # fmt: skip
        self._kept.clear()
        self._num_bytes = 0
        if old is not None:
            await old.close()

    def _answered(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone

    async def _ask(self, key: bytes, payload: bytes, kind: str) -> Verdict:
        assert self._sandbox is not None
        seconds = self._config.grammar_seconds
        until = float("inf")
        try:
            answer = await self._sandbox.call(payload, seconds)
            verdict = msgspec.msgpack.decode(answer, type=Verdict)
        except SandboxTimeout:
            verdict = Verdict("INVALID_GRAMMAR", f"{kind}: compile limit {seconds:g} s; make it simpler")
            until = time.monotonic() + SUSPICION_SECONDS
        except SandboxCrashed:
            verdict = Verdict(
                "INVALID_GRAMMAR", f"{kind}: compiling it ended in a crash or out of memory; make it simpler"
            )
            until = time.monotonic() + SUSPICION_SECONDS
        self._keep(key, _Kept(verdict, until))
        return verdict

    def _recall(self, key: bytes) -> Verdict | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until <= time.monotonic():
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return kept.verdict

    def _keep(self, key: bytes, kept: _Kept) -> None:
        self._kept[key] = kept
        self._num_bytes += kept.num_bytes
        while self._num_bytes > MAX_KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: bytes) -> None:
        self._num_bytes -= self._kept.pop(key).num_bytes
