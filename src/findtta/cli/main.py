"""Entry point of the ``findtta`` command: one subcommand per module, imported when it is called."""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import findtta
from findtta._processes import keep_freed_memory
from findtta.errors import FindTTAError
from findtta.options import usable_devices

INTERRUPTED = 130  # the exit code that shells give for Ctrl-C

#: What each subcommand does; each is a module of this package with ``add_arguments`` and ``run``.
COMMANDS = {
    "demo": "compare nine methods on three streams of corrupted images, in about a minute",
    "run": "evaluate one method on one stream, and store the result",
    "bench": "evaluate a grid of methods, streams, datasets, models and seeds; it can be interrupted",
    "results": "list, compare, show or export stored results",
    "report": "write stored results as one HTML page that opens without a network",
    "leaderboard": "write all methods on all streams as one page, from stored results",
    "paper": "reproduce tables and figures of the paper, with the paper's numbers beside ours",
    "methods": "list the methods, or show one with its options",
    "check": "check that a method, stream, corruption, partitioner or dataset keeps what it declares",
    "models": "list architectures and shipped models, check the accuracy of one, or check a config file on images",
    "data": "download published datasets, generate corrupted ones, and look at them",
    "streams": "list the streams, or show in which order the images of one arrive",
    "train": "train a source model on a dataset",
    "inspect": "show which layers of a model can be adapted, and what looks wrong with them",
    "recommend": "say which method to use for a model and unlabelled images, and why",
    "predict": "predict a folder of images, a list of paths or Parquet files; it can be interrupted",
    "export": "write an adapted model as an ONNX or torch.export file, and check the file against the model",
    "serve": "serve predictions over HTTP, in mixed batches",
    "completion": "print a script by which a shell completes commands and options",
}


class _Version(argparse.Action):
    """Print versions and devices, and exit; only this imports torch, so that other flags need not wait for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: Any) -> None:
        import torch

        print(
            f"findtta {findtta.__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
            f"devices: {', '.join(usable_devices())}"
        )
        parser.exit()


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Build the parser; only the chosen subcommand, or all if it is None, declares its arguments."""
    parser = argparse.ArgumentParser(prog="findtta", description=findtta.__doc__)
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and devices, and exit")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if chosen in (None, name):
            command = importlib.import_module(f"findtta.cli.{name}")
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in words if not word.startswith("-")), "")
    # Each of the many threads of a server would keep what it has decoded; models are in other processes.
    keep_freed_memory(here=chosen != "serve")
    try:
        arguments = build_parser(chosen).parse_args(words)
        code = int(arguments.run(arguments))
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
        return code
    except FindTTAError as error:
        print(f"findtta: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        # What is still in the buffer must go somewhere at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk that is full, or a folder that cannot be made
        what = f"{error.filename!r} " if error.filename else ""
        print(f"findtta: {what}cannot be used: {error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("findtta: stopped", file=sys.stderr)
        return INTERRUPTED
