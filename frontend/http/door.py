"""What every HTTP route is given, and what it may know of a request besides its body."""

from dataclasses import dataclass

from starlette.requests import Request

from quire.frontend.call import Call
from quire.frontend.config import FrontendConfig
from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.limits.work_pool import WorkPool
from quire.frontend.request.engine_info import Control
from quire.frontend.request.pipeline import Pipeline
from quire.frontend.stream.scheduler_client import SchedulerLink
from quire.frontend.telemetry.scrape import MetricsPage


@dataclass(frozen=True, slots=True)
class HttpDoor:
    config: FrontendConfig
    pipeline: Pipeline
    link: SchedulerLink
    control: Control
    metrics_page: MetricsPage
    bodies: WorkPool
    answers: WorkPool
    budget: ByteBudget


def request_id(request: Request) -> str:
    """The request's label: its `x-request-id` header, or a new one. The answer's `x-request-id` header says it."""
    label: str = request.scope["state"]["request_id"]
    return label


def call_of(request: Request, streams: bool | None = False) -> Call:
    headers = request.headers
    return Call("http", None, headers.get("traceparent", ""), headers.get("tracestate", ""), bool(streams))
