"""``findtta predict``: predictions for a folder of images, a list of paths or Parquet files."""

import argparse
import dataclasses
import functools
import json

from findtta._progress import progress_bar
from findtta.cli import output
from findtta.cli.flags import add_config, add_flags, given
from findtta.predict.settings import Execution, Settings
from findtta.predictor import PredictorSettings

_EXECUTION = ("executor", "workers", "ray_address", "threads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta predict``."""
    inputs = (
        "folder of images or Parquet files, a Parquet file, or a .txt with one path per line; or the URL of "
        "one of them (s3://..., gs://..., and what else fsspec knows)"
    )
    parser.add_argument("--input", required=True, metavar="PATH_OR_URL", help=inputs)
    folder = "folder of the predictions; if it holds a part of them already, the rest is computed"
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help=folder)
    add_config(parser)
    model = {field.name for field in dataclasses.fields(PredictorSettings)}
    others = {field.name for field in dataclasses.fields(Settings)} - model - set(_EXECUTION)
    add_flags(parser.add_argument_group("model and method"), Settings, only=model)
    add_flags(parser.add_argument_group("images and predictions"), Settings, only=others)
    add_flags(parser.add_argument_group("execution"), Settings, only=_EXECUTION)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an image could not be read")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Predict, and print a summary."""
    from findtta.predict import predict

    tell = functools.partial(output.tell, quiet=arguments.json)
    settings = Settings(**given(arguments, Settings))
    with progress_bar(None, "image", quiet=arguments.json, desc="predicting") as bar:

        def show(done: int, images: int) -> None:
            bar.total = images
            bar.update(done - bar.n)

        summary = predict(
            arguments.input,
            arguments.output,
            settings,
            progress=show,
            announce=lambda execution: tell(_where(execution)),
            tell=tell,
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), default=str, sort_keys=True))
    else:
        predicted = summary.images - summary.skipped
        print(f"{summary.images:,} images: {predicted:,} predicted, {summary.skipped:,} could not be read")
        print(f"blocks: {summary.blocks_now} computed in {summary.seconds:.1f} s, {summary.blocks_before} existed")
        print(f"predictions in {summary.predictions}")
        if summary.skipped:
            print(f"unreadable images in {summary.errors}")
    return 1 if arguments.strict and summary.skipped else 0


def _where(execution: Execution) -> str:
    if execution.executor == "local":
        return f"computing in this process ({execution.reason})"
    workers = execution.workers or "as many as there is room for"
    return f"computing on Ray, workers: {workers} ({execution.reason})"
