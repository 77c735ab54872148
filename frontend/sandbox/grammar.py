"""The check that a grammar compiles, in a process that can be killed; verdicts are cached."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxTimeout
from quire.frontend.sandbox.grammar_child import GrammarSetup, Verdict
from quire.frontend.sandbox.parent import Sandbox
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.requests import ModelFacts

MODULE = "quire.frontend.sandbox.grammar_child"
MAX_CACHE_BYTES = 4 << 20
ENTRY_BYTES = 256
"""Bytes of a cached verdict without a message."""
RETRY_SECONDS = 60.0
"""Time for which a grammar that was stopped or crashed is not tried again."""


@dataclass(frozen=True, slots=True)
class _CachedVerdict:
    verdict: Verdict
    until: float
    """Monotonic time of its end."""

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + len(self.verdict.message) + sum(map(len, self.verdict.ignored))


class GrammarChecker:
    """The cached verdicts, and the process that finds them, which starts with the first grammar."""

    def __init__(self, config: FrontendConfig) -> None:
        self._config = config
        self._setup: GrammarSetup | None = None
        self._sandbox: Sandbox | None = None
        self._cache: OrderedDict[bytes, _CachedVerdict] = OrderedDict()
        self._num_bytes = 0
        self._pending: dict[bytes, asyncio.Task[Verdict]] = {}

    async def check(self, structured: Structured, facts: ModelFacts, field: str = "structured") -> tuple[str, ...]:
        """The annotations of its schemas that nobody checks, as `keyword=value`.

        Raises `ParameterError` on `field` when it does not compile within the limits, `RequestError` where the process
        fails by itself: that is no verdict, and the next try may find one.
        """
        await self._use_model(facts)
        payload = msgspec.msgpack.encode(structured)
        key = hashlib.sha256(payload).digest()
        verdict = self._cached(key)
        if verdict is None:
            task = self._pending.get(key)
            if task is None:
                task = self._pending[key] = asyncio.create_task(self._compile(key, payload, structured.kind))
                task.add_done_callback(lambda task: self._on_compiled(key, task))
            verdict = await asyncio.shield(task)
        if verdict.reason:
            raise ParameterError(field, verdict.message, verdict.reason)
        return verdict.ignored

    async def close(self) -> None:
        """End the process."""
        if self._sandbox is not None:
            await self._sandbox.close()

    async def _use_model(self, facts: ModelFacts) -> None:
        """Begin anew for another model than before (the engine restarted with it): verdicts are of one model."""
        setup = GrammarSetup(self._config.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)
        if setup == self._setup:
            return
        old, self._setup = self._sandbox, setup
        memory_bytes = self._config.grammar_memory_bytes
        self._sandbox = Sandbox(MODULE, msgspec.msgpack.encode(setup), memory_bytes=memory_bytes)
        self._cache.clear()
        self._num_bytes = 0
        if old is not None:
            await old.close()

    def _on_compiled(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited may be gone

    async def _compile(self, key: bytes, payload: bytes, kind: str) -> Verdict:
        assert self._sandbox is not None
        seconds = self._config.grammar_seconds
        until = float("inf")
        try:
            answer = await self._sandbox.call(payload, seconds)
            verdict = msgspec.msgpack.decode(answer, type=Verdict)
        except SandboxTimeout:
            verdict = Verdict("INVALID_GRAMMAR", f"{kind}: compile limit {seconds:g} s; make it simpler")
            until = time.monotonic() + RETRY_SECONDS
        except SandboxCrashed:
            verdict = Verdict(
                "INVALID_GRAMMAR", f"{kind}: compiling it ended in a crash or out of memory; make it simpler"
            )
            until = time.monotonic() + RETRY_SECONDS
        self._add(key, _CachedVerdict(verdict, until))
        return verdict

    def _cached(self, key: bytes) -> Verdict | None:
        cached = self._cache.get(key)
        if cached is None:
            return None
        if cached.until <= time.monotonic():
            self._remove(key)
            return None
        self._cache.move_to_end(key)
        return cached.verdict

    def _add(self, key: bytes, cached: _CachedVerdict) -> None:
        self._cache[key] = cached
        self._num_bytes += cached.num_bytes
        while self._num_bytes > MAX_CACHE_BYTES:
            self._remove(next(iter(self._cache)))

    def _remove(self, key: bytes) -> None:
        self._num_bytes -= self._cache.pop(key).num_bytes
