"""Answer predictions over HTTP, in mixed batches on Ray Serve."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from findtta.errors import OptionError
from findtta.images import ImageLimits
from findtta.models.open import NAMES as MODELS
from findtta.options import parse_assignments
from findtta.serve.settings import MEBIBYTE, Settings

KEY_VARIABLE = "FINDTTA_API_KEY"
_DEFAULT = Settings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta serve``."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="NAME", help=f"{MODELS} (default: {_DEFAULT.model})")
    model.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    model.add_argument("--num-classes", type=int, metavar="N", help="if the weights have no card that says it")
    model.add_argument("--normalization", metavar="NAME", help="of the input, if the weights have no card")
    model.add_argument("--method", metavar="NAME", help="see 'findtta methods' (default: find)")
    model.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="an option of the method; may be repeated"
    )
    model.add_argument("--device", help="where the model runs (default: cpu)")
    model.add_argument(
        "--image-size", type=int, metavar="N", help="side of the pictures it gets (default: its own)"
    )
    model.add_argument("--crop", type=float, metavar="X", help="part of the shorter side kept (default: usual)")
    how = parser.add_argument_group("how it runs")
    how.add_argument("--host", metavar="ADDRESS", help=f"to listen at (default: {_DEFAULT.host})")
    how.add_argument("--port", type=int, metavar="N", help=f"0 takes a free one (default: {_DEFAULT.port})")
    how.add_argument("--max-batch", type=int, metavar="N", help=f"images (default: {_DEFAULT.max_batch})")
    how.add_argument(
        "--wait-ms",
        type=float,
        metavar="MS",
        help=f"an image waits for others to share its batch with (default: {_DEFAULT.wait_ms:g})",
    )
    how.add_argument("--replicas", metavar="N|MIN-MAX", help="copies of the model (default: 1)")
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads of each copy (default: 1)")
    how.add_argument("--ray-address", metavar="ADDRESS", help="of a Ray cluster (default: start one here)")
    how.add_argument("--api-key-file", type=Path, metavar="FILE", help=f"ask for this key (or ${KEY_VARIABLE})")
    how.add_argument(
        "--drain-s", type=float, metavar="S", help="go on telling balancers that it stops (default: 0)"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=int, metavar="N", help=f"images (default: {_DEFAULT.max_queue})")
    limits.add_argument(
        "--max-images", type=int, metavar="N", help="images in one request (default: as in a batch)"
    )
    limits.add_argument("--max-body-mb", type=int, metavar="MB", help="of one request (default: 32)")
    limits.add_argument("--max-json-mb", type=int, metavar="MB", help="of one request in JSON (default: 16)")
    limits.add_argument("--max-image-mb", type=int, metavar="MB", help="of one image file (default: 20)")
    limits.add_argument("--max-pixels", type=int, metavar="N", help="of one image (default: 50 million)")
    limits.add_argument(
        "--timeout-s", type=float, metavar="S", help=f"of one request (default: {_DEFAULT.timeout_s:g})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_of(arguments)
    from findtta.serve.server import serve

    answered = serve(settings, lambda url, ray_address: _announce(settings, url, ray_address))
    how = "everything accepted was answered" if answered else "not everything accepted was answered"
    print(f"findtta: stopped; {how}", file=sys.stderr)
    return 0 if answered else 1


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that the command line asks for."""
    given: dict[str, Any] = {name: getattr(arguments, name) for name in _PLAIN}
    if arguments.option:
        given["options"] = parse_assignments("--option", arguments.option)
    if arguments.replicas is not None:
        given["replicas"], given["max_replicas"] = _replicas(arguments.replicas)
    for name in ("max_body", "max_json"):
        if (size := getattr(arguments, f"{name}_mb")) is not None:
            given[f"{name}_bytes"] = size * MEBIBYTE
    if arguments.max_body_mb is not None:
        given["max_pending_bytes"] = max(_DEFAULT.max_pending_bytes, given["max_body_bytes"])
    limits = {
        "max_bytes": None if arguments.max_image_mb is None else arguments.max_image_mb * MEBIBYTE,
        "max_pixels": arguments.max_pixels,
    }
    given["limits"] = ImageLimits(**{name: value for name, value in limits.items() if value is not None})
    given["api_key"] = _api_key(arguments.api_key_file)
    return Settings(**{name: value for name, value in given.items() if value is not None})


_PLAIN = (
    "model",
    "weights",
    "num_classes",
    "normalization",
    "method",
    "device",
    "image_size",
    "crop",
    "host",
    "port",
    "max_batch",
    "wait_ms",
    "threads",
    "ray_address",
    "drain_s",
    "max_queue",
    "max_images",
    "timeout_s",
)


def _replicas(text: str) -> tuple[int, int | None]:
    least, dash, most = text.partition("-")
    if not least.isdecimal() or (dash and not most.isdecimal()):
        raise OptionError(f"--replicas must look like 2 or 1-4, got {text!r}.")
    return int(least), int(most) if dash else None


def _api_key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--api-key-file: {str(file)!r} cannot be read ({error}).") from error
    if not key:
        raise OptionError(f"--api-key-file: {str(file)!r} is empty; write the key into it.")
    return key


def _announce(settings: Settings, url: str, ray_address: str) -> None:
    print(f"findtta: {settings.model} under {settings.method} answers at {url}", flush=True)
    print(f"findtta: its copies run on Ray at {ray_address}", file=sys.stderr, flush=True)
    if settings.method == "find-star":
        print("findtta: it chooses its layers in its first batches, and anew if its copy dies", file=sys.stderr)
