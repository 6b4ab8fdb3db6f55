"""Structured logs: one line per event, JSON for programs, plain words on a terminal.

Tracebacks are plain and show no local variables, which could hold a token.
"""

import logging
import sys
from typing import Any

import structlog

QUIET = ("alembic",)  # tells at every start that nothing had to be done

_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True)


def get_logger(name: str) -> Any:
    """A logger that takes fields: `log.info("made a job", job_id=…)`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure(level: str = "info", *, as_text: bool | None = None) -> None:
    """Send the logs of the whole process to standard error, also those of plain `logging`.

    As text, or as JSON; None: text where that is a terminal. Where a handler is set up already,
    nothing is changed.
    """
    on_terminal = sys.stderr.isatty()
    as_text = on_terminal if as_text is None else as_text
    render: Any = structlog.processors.JSONRenderer()
    if as_text:
        plain = structlog.dev.plain_traceback
        render = structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=plain)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.stdlib.PositionalArgumentsFormatter(),
            _drop_colours,
            _STAMP,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(() if as_text else (structlog.processors.format_exc_info,)),
            render,
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _drop_colours(_logger: Any, _method: str, event: Any) -> Any:
    """uvicorn says some things twice, the second time with terminal colours."""
    event.pop("color_message", None)
    return event
