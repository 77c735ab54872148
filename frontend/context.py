"""The parts of a frontend that the gRPC and the HTTP server work with."""

from dataclasses import dataclass

from quire.frontend.config import FrontendConfig
from quire.frontend.health import Health
from quire.frontend.limits.answer_budget import AnswerBudget
from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.limits.work_pool import WorkPool
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request.engine_info import EngineInfo
from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.security.keys import Keyring
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.telemetry.scrape import MetricsPage


@dataclass(frozen=True, slots=True)
class FrontendContext:
    """One per frontend."""

    config: FrontendConfig
    keyring: Keyring
    metrics: Metrics
    metrics_page: MetricsPage
    scheduler: SchedulerClient
    pipeline: RequestPipeline
    health: Health
    engine_info: EngineInfo
    bodies: WorkPool
    """Threads that look into large bodies."""
    answers: WorkPool
    """Threads that write large answers."""
    answer_budget: AnswerBudget
    """Bytes of the large answers that are made and sent."""
    budget: ByteBudget
    """Bytes of the bodies that are being read and prepared."""
