"""Entry point of the ``findtta`` command: one subcommand per module of this package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import findtta
from findtta.cli import (
    bench,
    data,
    demo,
    doctor,
    export,
    loadtest,
    methods,
    models,
    paper,
    predict,
    report,
    results,
    run,
    serve,
    streams,
    train,
)
from findtta.errors import FindTTAError

COMMANDS = (
    demo,
    run,
    bench,
    results,
    report,
    paper,
    methods,
    models,
    data,
    streams,
    train,
    doctor,
    predict,
    export,
    serve,
    loadtest,
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser with all subcommands."""
    parser = argparse.ArgumentParser(prog="findtta", description=findtta.__doc__)
    parser.add_argument("--version", action="version", version=f"findtta {findtta.__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        summary = (command.__doc__ or "").strip().splitlines()[0]
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except FindTTAError as error:
        print(f"findtta: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        # What is still in the buffer must go somewhere at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("findtta: stopped", file=sys.stderr)
        return 130
