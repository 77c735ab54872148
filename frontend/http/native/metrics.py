"""`GET /metrics`: the whole engine for Prometheus, in its text format or OpenMetrics."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext


def routes(context: FrontendContext) -> list[Route]:
    async def metrics(request: Request) -> Response:
        page, content_type = await context.metrics_page.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return [Route("/metrics", metrics, methods=["GET"])]
