"""grpc.health.v1: Check, Watch and List.

The library's own servicer holds a lock while it writes to a watcher, so one stalled reader would freeze every change;
here a watcher only ever waits for the next change.
"""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.frontend.health import Health

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

SERVICES: dict[str, Callable[[Health], bool]] = {
    **dict.fromkeys(("", "quire.v1.Inference", "quire.v1.Control"), lambda health: health.is_ready),
    "liveness": lambda health: health.is_live,
    "scheduler": lambda health: health.has_scheduler,
    "workers": lambda health: health.has_workers,
}
"""Name of a service -> whether it is SERVING. The first three are the server and its services, as `/ready` has them;
`liveness` is `/live`, for probes that end what does not answer.
"""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The services of `SERVICES`."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def _status(self, service: str) -> int | None:
        """The status of a service; None for an unknown name."""
        serves = SERVICES.get(service)
        if serves is None:
            return None
        return SERVING if serves(self._health) else NOT_SERVING

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        sent: int | None = None
        while True:
            change = self._health.change()
            status = self._status(request.service)
            status = UNKNOWN if status is None else status
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await change.wait()

    async def List(
        self, request: health_pb2.HealthListRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in SERVICES}
        )
