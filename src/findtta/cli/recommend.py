"""``findtta recommend``: which method to use for a model and unlabelled images, and why."""

import argparse
import contextlib
import dataclasses
import functools
import math
import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from findtta._processes import torch_threads
from findtta._progress import progress_bar
from findtta.bench.plan import Planner, RunSpec
from findtta.cli import output
from findtta.cli.config import read_config
from findtta.cli.flags import add_config, add_flags, given
from findtta.errors import InputError, OptionError, first_line
from findtta.images import Pixels, to_input
from findtta.models import Classifier, preprocessing_of
from findtta.models.open import describe_input
from findtta.options import Count, Options, Text, option
from findtta.predict.compute import Reader
from findtta.predict.settings import Settings
from findtta.predict.sources import open_source
from findtta.predictor import PredictorSettings
from findtta.recommendation import CANDIDATES, recommend

_MODEL = {field.name for field in dataclasses.fields(PredictorSettings)} - {"method", "options", "card", "compile"}
_IMAGES = ("batch_size", "image_column")
#: From the number of a batch to its inputs.
BatchReader = Callable[[int], Tensor]
_STREAM = ("data", "data_options", "domains", "severity", "images", "stream", "seed")


@dataclass(frozen=True, kw_only=True)
class Comparison(Options):
    """What is compared, and on how many images."""

    candidates: tuple[Text, ...] = option(
        CANDIDATES, "methods that may be recommended, such as find,find:alpha=0.9", shown=", ".join(CANDIDATES)
    )
    batches: Count = option(16, "number of batches to look at, evenly spread over the input")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta recommend``."""
    add_config(parser)
    inputs = (
        "unlabelled images in the order in which they arrive: what 'findtta predict' takes, or an .npz file with "
        "an array 'images', uint8 (images, height, width, 3)"
    )
    parser.add_argument("--input", metavar="PATH_OR_URL", help=inputs)
    add_flags(parser, Comparison)
    add_flags(parser.add_argument_group("model"), Settings, only=_MODEL)
    add_flags(parser.add_argument_group("images"), Settings, only=(*_IMAGES, "threads"))
    stream = "a stream of a dataset in place of --input; its labels are not looked at"
    add_flags(parser.add_argument_group("stream", stream), RunSpec, only=_STREAM)
    parser.add_argument("--json", action="store_true", help="print the recommendation as JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Compare the candidates, and print the recommendation."""
    asked = [name for name in _STREAM if getattr(arguments, name) is not None]
    if (arguments.input is None) != bool(asked):
        raise OptionError(
            "input must be given, such as a folder of images, or else a stream of a dataset (--data, --stream), "
            f"not both, got {', '.join(['input', *asked]) if asked else 'neither'}."
        )
    comparison = Comparison(**given(arguments, Comparison))
    settings = Settings(**given(arguments, Settings, only={*_MODEL, *_IMAGES, "threads"}))
    tell = functools.partial(output.tell, quiet=arguments.json)
    with torch_threads(settings.threads), contextlib.ExitStack() as stack:
        if asked:
            spec = RunSpec(**given(arguments, RunSpec, only={*_MODEL, *_STREAM, "batch_size"}))
            model, count, batch = _open_stream(spec, tell)
        else:
            model = settings.load_model()
            count, batch = _open_input(arguments.input, model, settings, tell, stack)
        most = min(count, comparison.batches)
        chosen = [count * number // most for number in range(most)]
        bar = stack.enter_context(progress_bar(len(chosen), "batch", quiet=arguments.json))
        found = recommend(
            model, map(batch, chosen), comparison.candidates, progress=lambda done: bar.update(done - bar.n)
        )
    if arguments.json:
        output.print_json(found.to_dict())
    else:
        output.print_text(found.text(_model_flags(arguments)))
        config = read_config(arguments.config) if arguments.config else {}
        if config.get("options") and config.get("method", settings.method) == found.best.method:
            what = f"the options of {found.best.method}"
            output.print_text(f"Take {what} out of the file first: they were not compared.")
    return 0


def _open_stream(spec: RunSpec, tell: Callable[[str], None]) -> tuple[Classifier, int, BatchReader]:
    """Return the model, the number of batches of a stream, and what reads one of them."""
    plan = Planner(tell).plan(spec)

    def read(index: int) -> Tensor:
        batch = plan.stream[index]
        return to_input(plan.dataset.batch(batch.domain_ids, batch.rows)[0], spec.device)

    return plan.model.to(spec.device), len(plan.stream), read


def _open_input(
    path: str, model: Classifier, settings: Settings, tell: Callable[[str], None], stack: contextlib.ExitStack
) -> tuple[int, BatchReader]:
    """Return the number of batches of an input, and what reads one of them."""
    size, device = settings.batch_size, settings.device
    model.to(device)
    if Path(path).suffix.lower() == ".npz":
        images, side = _read_npz(Path(path)), settings.image_size
        if settings.crop or settings.interpolation or (side and images.shape[1:3] != (side, side)):
            raise OptionError(
                "image_size, crop and interpolation are for image files, but the images of an .npz are used as "
                f"they are, {images.shape[1]} x {images.shape[2]}."
            )
        return math.ceil(len(images) / size), lambda index: to_input(images[index * size :][:size], device)
    preprocess = preprocessing_of(model, settings.image_size, settings.crop, settings.interpolation)
    tell(describe_input(model, preprocess, preprocess.size, vars(settings)))
    source = stack.enter_context(contextlib.closing(open_source(path, settings.image_column)))
    reader = Reader(size, preprocess, settings.image_limits)

    def read(index: int) -> Tensor:
        (batch,) = reader.batches([source.part(index * size, (index + 1) * size)])
        if unread := len(batch.records) - len(batch.images):
            tell(f"{unread} images of batch {index + 1} cannot be read and are left out")
        return to_input(batch.images, device)

    return math.ceil(len(source) / size), read


def _read_npz(path: Path) -> Pixels:
    """Return the images of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images: Pixels = file["images"]
    except Exception as error:  # of a file that is damaged, or of another kind
        # NumPy takes any other file for a pickle, and advises to load it unsafely.
        other = "it is another kind of file" if path.exists() else "it does not exist"
        reason = first_line(error) if zipfile.is_zipfile(path) else f"{other}."
        raise InputError(f"input: {str(path)!r} must be an .npz file with an array 'images': {reason}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InputError(
            f"input: the array 'images' of {str(path)!r} must be uint8 of shape (images, height, width, 3), got "
            f"{images.dtype} of shape {images.shape}."
        )
    return images


def _model_flags(arguments: argparse.Namespace) -> str:
    """Return the flags that name the model as they were given, for the next command."""
    named = ("config", *sorted(_MODEL & set(vars(arguments))))
    words = ((f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in named)
    return " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in words if value is not None)
