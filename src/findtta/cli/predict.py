"""Predict a folder of images, a list of paths or Parquet files; a kill only pauses it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from findtta.options import parse_assignments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta predict``."""
    parser.add_argument(
        "--input",
        required=True,
        type=Path,
        metavar="PATH",
        help="a folder of images or Parquet files, a Parquet file, or a .txt with one path per line",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder of answers: new, or to be gone on with",
    )
    _add_model(parser.add_argument_group("the network and the method"))
    _add_images(parser.add_argument_group("images and answers"))
    _add_execution(parser.add_argument_group("who computes"))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an image could not be read")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        default="shapes-resnet26",
        metavar="NAME",
        help="a shipped model, an architecture or timm:NAME with --weights, or file.py:CALLABLE "
        "(default: shapes-resnet26)",
    )
    group.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    group.add_argument("--num-classes", type=int, metavar="N", help="of weights that have no card")
    group.add_argument("--normalization", metavar="NAME", help="of the input, if the weights have no card")
    group.add_argument("--method", default="find", metavar="NAME", help="see 'findtta methods' (default: find)")
    group.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the method; may be repeated"
    )
    group.add_argument("--device", default="cpu", help="where the network runs (default: cpu)")
    group.add_argument("--image-size", type=int, metavar="N", help="side of the pictures (default: the network's)")
    group.add_argument("--interpolation", choices=("bilinear", "bicubic"), help="(default: the model's own)")
    group.add_argument("--crop", type=float, metavar="SHARE", help="of the shorter side that is kept")


def _add_images(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="images per batch (default: 64)")
    group.add_argument(
        "--block-size", type=int, metavar="N", help="images per file of answers (default: 16 batches)"
    )
    group.add_argument("--top", type=int, metavar="K", help="keep the K most probable classes (default: all)")
    group.add_argument("--format", choices=("parquet", "jsonl"), help="(default: parquet if pyarrow is there)")
    group.add_argument(
        "--image-column", default="image", metavar="NAME", help="of Parquet files: bytes or paths (default: image)"
    )
    group.add_argument("--max-bytes", type=int, metavar="N", help="of an image file (default: 20 MiB)")
    group.add_argument("--max-pixels", type=int, metavar="N", help="of an image (default: 50 million)")


def _add_execution(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine", choices=("local", "ray"), help="this process, or Ray Data (default: by the number of images)"
    )
    group.add_argument("--workers", type=int, metavar="N", help="workers of Ray")
    group.add_argument("--ray-address", metavar="ADDRESS", help="of the Ray cluster (default: start one here)")
    group.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads per worker (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Predict, and print what came of it."""
    from tqdm import tqdm

    from findtta.images import ImageLimits
    from findtta.predict import Settings, predict
    from findtta.predict.choice import Choice

    given = {"max_bytes": arguments.max_bytes, "max_pixels": arguments.max_pixels}
    limits = ImageLimits(**{name: value for name, value in given.items() if value is not None})
    plain = {field.name for field in dataclasses.fields(Settings)} - {"options", "limits"}
    settings = Settings(
        **{name: getattr(arguments, name) for name in plain},
        options=parse_assignments("--option", arguments.option),
        limits=limits,
    )

    def announce(choice: Choice) -> None:
        if not arguments.json:
            print(_who(choice.engine, choice.workers, choice.reason), file=sys.stderr)

    hidden = arguments.json or not sys.stderr.isatty()
    with tqdm(unit="image", disable=hidden, leave=False) as bar:

        def show(done: int, images: int) -> None:
            bar.total = images
            bar.update(done - bar.n)

        summary = predict(
            arguments.input,
            arguments.output,
            settings,
            engine=arguments.engine,
            workers=arguments.workers,
            ray_address=arguments.ray_address,
            progress=show,
            announce=announce,
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), default=str, sort_keys=True))
    else:
        print(
            f"{summary.images:,} images: {summary.images - summary.skipped:,} predicted, "
            f"{summary.skipped:,} could not be read"
        )
        print(
            f"blocks: {summary.blocks_now} computed in {summary.seconds:.1f} s, "
            f"{summary.blocks_before} were there already"
        )
        print(f"answers in {summary.predictions}")
        if summary.skipped:
            print(f"unreadable images in {summary.errors}")
    return 1 if arguments.strict and summary.skipped else 0


def _who(engine: str, workers: int | None, reason: str) -> str:
    if engine == "local":
        return f"computing in this process ({reason})"
    many = "as many workers as the cluster has room for" if workers is None else f"{workers} workers"
    return f"computing on Ray with {many} ({reason})"
