"""The page of a scrape: all frontends of this engine, its scheduler, and on request vLLM's names for the same."""

import asyncio
import time

from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.families import FAMILIES
from quire.frontend.metrics.metrics import Labels, Metrics
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.telemetry import vllm_names
from quire.frontend.telemetry.exposition import Meaning, encode, families
from quire.frontend.telemetry.snapshots import Snapshot, Snapshots, total
from quire.proto.api import RequestError
from quire.proto.messages.introspection import Distribution, Figure, MetricsQuery, StatusQuery
from quire.proto.messages.requests import ModelFacts
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.metrics.rates import Rates, rates

WRITE_SECONDS = 1.0
QUERY_SECONDS = 2.0
"""Time the scheduler has for its answer: a scrape must not run into its own time-out meanwhile."""
PREFIX = "quire_"
MEANINGS: dict[str, Meaning] = {
    name: (family.kind, family.help) for table in (FAMILIES, SCHEDULER_FAMILIES) for name, family in table.items()
}


class MetricsPage:
    """`run` writes this frontend's snapshot once a second; `render` answers a scrape."""

    def __init__(self, config: FrontendConfig, scheduler: SchedulerClient, metrics: Metrics, version: str) -> None:
        """Raises `ValueError` when `run_dir` cannot be used."""
        self.metrics = metrics
        self._config = config
        self._scheduler = scheduler
        self._version = version
        self._snapshots = Snapshots(metrics, config.run_dir, config.index)

    async def run(self) -> None:
        """Write snapshots until cancelled."""
        try:
            while True:
                self._snapshots.write()
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            self._snapshots.write()

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type. While the scheduler is lost its samples are missing, the rest is there."""
        samples, distributions = await self._of_scheduler()
        now = await self._rates() if self._config.vllm_metric_names else None
        snapshots = self._snapshots.all()
        # the text takes milliseconds, in which streams must move
        return await asyncio.to_thread(self._text, snapshots, samples, distributions, now, accept)

    def _text(
        self,
        snapshots: list[Snapshot],
        samples: list[Figure],
        distributions: list[Distribution],
        now: Rates | None,
        accept: str,
    ) -> tuple[bytes, str]:
        own_samples, own_distributions = total(snapshots, time.monotonic())
        samples, distributions = [*own_samples, *samples], [*own_distributions, *distributions]
        page = list(families(MEANINGS, samples, distributions, PREFIX))
        if self._config.vllm_metric_names:
            welcome = self._scheduler.welcome
            facts = welcome.facts if welcome is not None else None
            name = self._config.served_model_names[0]
            also = vllm_names.aliases(samples, distributions, facts, name, now)
            for prefix in vllm_names.PREFIXES:
                page += families(vllm_names.MEANINGS, *also, prefix)
        return encode(page, accept)

    async def _rates(self) -> Rates | None:
        """Rates of the newest steps, which only vLLM's old names need; None while the scheduler is lost."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                seen = await self._scheduler.ask(StatusQuery, -1, False)
        except (RequestError, TimeoutError):
            return None
        return rates(seen.steps, seen.now)

    async def _of_scheduler(self) -> tuple[list[Figure], list[Distribution]]:
        ready = Figure("engine_ready", float(self._scheduler.progress() == "ready"))
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                answer = await self._scheduler.ask(MetricsQuery)
        except (RequestError, TimeoutError):
            return [Figure("scheduler_up", 0.0), Figure("engine_ready", 0.0)], []
        welcome = self._scheduler.welcome
        info = (
            [] if welcome is None or welcome.facts is None else [Figure("model_info", 1.0, self._info(welcome.facts))]
        )
        return [Figure("scheduler_up", 1.0), ready, *info, *answer.figures], list(answer.distributions)

    def _info(self, facts: ModelFacts) -> Labels:
        return (
            ("architecture", facts.architecture),
            ("block_size", str(facts.block_size)),
            ("device", facts.device),
            ("dtype", facts.dtype),
            ("model_name", self._config.served_model_names[0]),
            ("num_blocks", str(facts.num_blocks)),
            ("revision", facts.revision),
            ("task", facts.task),
            ("version", self._version),
        )
