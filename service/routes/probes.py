"""What machines and people look at: probes, status, metrics."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from ..answers import BoxStatus, Health
from ..errors import not_ready
from ..front import ALIVE
from ..metrics import CONTENT_TYPE, Metrics
from ..status import daemon_status
from .common import TheDaemon, Unchanged, with_etag
from .description import NOT_READY, UNCHANGED, answers

router = APIRouter(tags=["status"])

METRICS = {"description": "In the text format of Prometheus."}


@router.get("/livez", **answers(Health))
async def live() -> dict[str, Any]:
    """The event loop turns."""
    return ALIVE


@router.get("/readyz", **answers(Health, NOT_READY))
@router.get("/healthz", name="health", **answers(Health, NOT_READY))
def ready(request: Request, daemon: TheDaemon) -> JSONResponse:
    """A job can be taken now; else 503 with the reasons."""
    reasons = list(daemon.ready())
    if damage := request.app.state.tokens.damage():
        reasons.append(damage)
    return JSONResponse(not_ready(reasons), 503) if reasons else JSONResponse(ALIVE)


@router.get("/status", **answers(BoxStatus, UNCHANGED))
def status(daemon: TheDaemon, known: Unchanged = None) -> Response:
    """The daemon, its worker, queue, storage and device in one object."""
    return with_etag(known, daemon_status(daemon))


@router.get("/metrics", response_class=PlainTextResponse, responses={200: METRICS})
def metrics(request: Request) -> Response:
    """The numbers for Prometheus."""
    counted: Metrics = request.app.state.metrics
    return Response(counted.render(), media_type=CONTENT_TYPE)
