"""Serve predictions over HTTP, in mixed batches."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from findtta.cli.flags import add_config, add_flags, given
from findtta.errors import OptionError
from findtta.predictor import PredictorSettings
from findtta.serve import Description, Settings, serve
from findtta.serve.settings import KEY_VARIABLE

_MODEL = {field.name for field in dataclasses.fields(PredictorSettings)}
_SERVER = {field.name for field in dataclasses.fields(Settings)} - _MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta serve``."""
    add_config(parser)
    add_flags(parser.add_argument_group("model"), Settings, only=_MODEL)
    server = parser.add_argument_group("server and its limits")
    add_flags(server, Settings, only=_SERVER)
    server.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"file with a key that requests must send (default: ${KEY_VARIABLE}, or no key)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_of(arguments)
    complete = serve(settings, _announce)
    how = "every accepted request was answered" if complete else "some accepted requests were not answered"
    print(f"findtta: stopped; {how}", file=sys.stderr)
    return 0 if complete else 1


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that the command line asks for."""
    return Settings(**given(arguments, Settings), api_key=_api_key(arguments.api_key_file))


def _api_key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip() or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--api-key-file: {str(file)!r} cannot be read ({error}).") from error
    if not key:
        raise OptionError(f"--api-key-file: {str(file)!r} is empty; write the key into it.")
    return key


def _announce(url: str, description: Description, place: str) -> None:
    print(f"findtta: {description.model} under {description.method} serves at {url}", flush=True)
    print(f"findtta: replicas run {place}", file=sys.stderr, flush=True)
    if description.batch_independent:
        print("findtta: each prediction depends on its own image only", file=sys.stderr, flush=True)
    else:
        print(
            "findtta: a prediction depends on the other images of its batch; not so with --method instance, "
            "iabn or source",
            file=sys.stderr,
            flush=True,
        )
    if batches := description.warm_up_batches:
        print(
            f"findtta: it warms up on its first {batches} batches, and again if its replica is replaced",
            file=sys.stderr,
            flush=True,
        )
