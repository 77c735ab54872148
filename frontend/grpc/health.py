"""grpc.health.v1: Check, Watch and List. It reports the scheduler's progress, not that this process lives.

The library's own servicer holds a lock while it writes to a watcher, so one stalled reader would freeze every change;
here a watcher only ever waits for the next change.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.frontend.stream.scheduler_client import SchedulerClient

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

SERVICES = ("", "quire.v1.Inference", "quire.v1.Control")
"""Names of the whole server and its services; serving means that a request would be taken now."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Besides the services it reports `scheduler` (it answers and is not failed) and `workers` (a group is up)."""

    def __init__(self, scheduler: SchedulerClient) -> None:
        self._scheduler = scheduler
        self._draining = False
        self._changed = asyncio.Event()
        scheduler.on_change = self.refresh

    def drain(self) -> None:
        """Report that this server takes nothing any more."""
        self._draining = True
        self.refresh()

    def refresh(self) -> None:
        """Wake every watcher."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def status(self, service: str) -> int | None:
        """The status of a service; None for an unknown name."""
        state = self._scheduler.state
        if service in SERVICES:
            return SERVING if state in ("ready", "recovering") and not self._draining else NOT_SERVING
        if service == "scheduler":
            return SERVING if state not in ("lost", "failed") and self._scheduler.welcome is not None else NOT_SERVING
        if service == "workers":
            return SERVING if state in ("ready", "draining") else NOT_SERVING
        return None

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> health_pb2.HealthCheckResponse:
        status = self.status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        sent: int | None = None
        while True:
            changed = self._changed
            status = self.status(request.service)
            status = UNKNOWN if status is None else status
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await changed.wait()

    async def List(
        self, request: health_pb2.HealthListRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> health_pb2.HealthListResponse:
        names = (*SERVICES, "scheduler", "workers")
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=self.status(name)) for name in names}
        )
