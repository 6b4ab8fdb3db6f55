"""The command line: `headrace`, or `python -m headrace.service`."""

import sys

from .cli.output import CliError, Exit, json_by_itself, report_error
from .client import DaemonError, Refused, Unreachable


def main(arguments: list[str] | None = None) -> None:
    """Run one command. Ends with SystemExit and one of the codes of `cli.output.Exit`."""
    from .cli import app

    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given or ("--text" not in given and json_by_itself())
    try:
        app(args=arguments, prog_name="headrace")
    except Refused as error:
        report_error(str(error), code=Exit.REFUSED, as_json=as_json, details=error.error)
        sys.exit(Exit.REFUSED)
    except (CliError, DaemonError) as error:
        code = error.code if isinstance(error, CliError) else _daemon_code(error)
        report_error(str(error), code=code, as_json=as_json)
        sys.exit(code)
    except OSError as error:  # of a path or a drive that the user named
        report_error(describe_os_error(error), code=Exit.FAILED, as_json=as_json)
        sys.exit(Exit.FAILED)


def describe_os_error(error: OSError) -> str:
    """The system's word for it, after the path that it is about when that is known."""
    said = error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"


def _daemon_code(error: DaemonError) -> Exit:
    return Exit.UNREACHABLE if isinstance(error, Unreachable) else Exit.FAILED


if __name__ == "__main__":
    main()
