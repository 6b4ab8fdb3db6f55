"""The API described: what every answer may be, beside what each route says of its own."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from ..errors import ENVELOPE_SCHEMA
from ..front import OPEN_PATHS

Responses = dict[int | str, dict[str, Any]]

TAGS = [
    {"name": "files", "description": "Training files in, result files out."},
    {"name": "uploads", "description": "A large file in parts of 64 MiB at most."},
    {"name": "fine-tuning", "description": "Jobs and plans, and what may be done to them."},
    {"name": "events", "description": "What happened to a job: pages, a live stream, curves."},
    {"name": "models", "description": "What a job can start from."},
    {"name": "status", "description": "The daemon and its box."},
]
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}


def refusal(description: str) -> dict[str, Any]:
    """What the document says of a refusal, for a status of an operation."""
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
    }


# The ranges stand for the rest, so that the framework adds no answer that is never given.
EVERYWHERE: Responses = {
    401: refusal("No token, or an unknown one, where one is wanted."),
    403: refusal("The token has not the scope for this; or the request comes from elsewhere."),
    429: refusal("Too many failed attempts from this address; `retry-after` says how long."),
    500: refusal("The server failed; its log has the reason, by the `x-request-id`."),
    "4XX": refusal("Refused, and why."),
    "5XX": refusal("Not possible at this moment, and why."),
}
BAD: Responses = {400: refusal("Something in the request is wrong, or its time is not now.")}
MISSING: Responses = {404: refusal("There is nothing of that name.")}
TOO_LARGE: Responses = {
    413: refusal("Larger than it may be."),
    507: refusal("There is no room for it."),
}
NOT_READY: Responses = {503: refusal("No job can be taken now; `reasons` says why.")}
UNCHANGED: Responses = {304: {"description": "As the client has it already (If-None-Match)."}}


def answers(model: type[BaseModel], *more: Responses) -> dict[str, Any]:
    """For a route's decorator: answers with such an object, which is not checked, and refusals."""
    responses: Responses = {200: {"model": model}}
    for others in more:
        responses |= others
    return {"response_model": None, "responses": responses}


def stream_of(description: str) -> Responses:
    """The answer of a stream of server-sent events."""
    json = {"type": "string", "contentMediaType": "application/json"}
    schema = {
        "type": "object",
        "required": ["event", "data"],
        "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": json},
    }
    return {200: {"description": description, "content": {"text/event-stream": {"schema": schema}}}}


def operation_id(route: APIRoute) -> str:
    """A name for programs that are made from the description: the tag and the handler's name."""
    return f"{route.tags[0] if route.tags else 'api'}_{route.name}".replace("-", "_")


def describe(app: FastAPI) -> None:
    """Let `app.openapi` tell also of refusals and tokens."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        parts = schema.setdefault("components", {})
        parts.setdefault("schemas", {})["Refusal"] = ENVELOPE_SCHEMA
        parts["securitySchemes"] = SECURITY
        schema["security"] = [{}, *({name: []} for name in SECURITY)]  # {}: while no token exists
        for path in OPEN_PATHS & schema["paths"].keys():
            _open(schema["paths"][path])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _open(item: Mapping[str, Any]) -> None:
    for operation in item.values():
        operation["security"] = []
