"""The page: server-rendered, kept fresh by small scripts of our own, nothing from elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from ..auth import UNKNOWN_TOKEN
from ..downloads import download
from ..errors import ApiError, not_found
from ..gate import PAGES, address_of, slow_down
from ..jobs import UnknownId
from ..page_view import job_view, new_view, overview
from ..sessions import COOKIE, LIFE_SECONDS, Sessions, check_origin, read_cookie
from ..templating import render
from .common import After, TheDaemon

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent.parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


@router.get("/")
def show_overview(request: Request, daemon: TheDaemon, after: After = None) -> HTMLResponse:
    """The box, the queue and the jobs."""
    try:
        view = overview(daemon, after=after)
    except UnknownId:
        return _page(request, "missing.html", {"what": f"job {after!r}"}, 404)
    return _page(request, "overview.html", view)


@router.get("/jobs/{job_id}")
def show_job(job_id: str, request: Request, daemon: TheDaemon) -> HTMLResponse:
    """One job: how it learns, what it waits for, what it made."""
    view = job_view(daemon, job_id)
    if view is None:
        return _page(request, "missing.html", {"what": f"job {job_id!r}"}, 404)
    return _page(request, "job.html", view)


@router.get("/new")
def show_new(request: Request, daemon: TheDaemon) -> HTMLResponse:
    """The form for a job, with its plan before it is sent."""
    return _page(request, "new.html", new_view(daemon))


@router.get("/login")
def show_login(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    """Where a browser shows its token; not wanted while there is none."""
    if not request.app.state.tokens.entries():
        return RedirectResponse("/", 303)
    return _page(request, "login.html", {"next": _own_page(next), "problem": ""})


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Take a token from the form; a cookie that stands for it."""
    check_origin(request.headers)
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    target = _own_page(form.get("next", ["/"])[0])
    sessions: Sessions = request.app.state.sessions
    secret = sessions.open(form.get("token", [""])[0].strip())
    if secret is None:
        return _refuse_login(request, target)
    response = RedirectResponse(target, 303)
    response.set_cookie(
        COOKIE,
        secret,
        max_age=LIFE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """End the browser's session."""
    request.app.state.sessions.close(read_cookie(request.headers))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/favicon.ico")
@router.get("/static/{name}")
def static(request: Request, name: str = "icon.svg") -> FileResponse:
    """A script, a style sheet, the icon. They are asked for again when they have changed."""
    path = next((one for one in STATIC.iterdir() if one.name == name), None)
    if path is None or path.suffix not in KINDS:
        raise not_found("page", f"/static/{name}")
    headers = {**HEADERS, "cache-control": "no-cache"}
    return download(request, path, media_type=KINDS[path.suffix], headers=headers)


def _refuse_login(request: Request, target: str) -> Response:
    wait = request.app.state.failed_attempts.count(address_of(request.scope))
    if wait:
        error = ApiError(401, "The token is not known here.", code=UNKNOWN_TOKEN)
        return slow_down(error, wait)
    problem = "This token is not known here. It may have been revoked."
    return _page(request, "login.html", {"next": target, "problem": problem}, 401)


def _own_page(target: str) -> str:
    """The target when it is one of our pages, so that a login leads nowhere else."""
    return target if PAGES.fullmatch(target) else "/"


def _page(
    request: Request, template: str, view: Mapping[str, Any], status: int = 200
) -> HTMLResponse:
    has_session = bool(request.app.state.tokens.entries()) and template != "login.html"
    html = render(template, {**view, "has_session": has_session, "path": request.url.path})
    return HTMLResponse(html, status, headers={**HEADERS, "cache-control": "no-store"})
