"""Write an adapted model as an ONNX or torch.export file, and check the file against the model."""

import argparse
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from findtta import export
from findtta._processes import torch_threads
from findtta._progress import progress_bar
from findtta.api import adapt
from findtta.cli.flags import add_config, add_flags, given
from findtta.cli.output import tell
from findtta.errors import OptionError
from findtta.export.files import Progress
from findtta.models.card import Classifier
from findtta.models.open import describe_input, is_own, load, load_module, preprocessing_of
from findtta.options import Count, option
from findtta.predictor import PredictorSettings

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class ExportSettings(PredictorSettings):
    """What to export, and to which file."""

    output: Path
    data: str | None = option(
        None,
        "dataset that the method warms up on, in mixed batches, and that the file is also checked on",
        metavar="NAME|PATH",
    )
    warm_up: Count | None = option(
        None,
        "batches of 64 of --data that the method learns from first; the file begins with what it learned",
        shown="as many as it needs: those of the cold start of find-star, none for others",
    )
    data_options: Mapping[str, Any] = option(dict, "option of the dataset; may be repeated", flag="data-option")
    max_batch: Count = option(export.MAX_BATCH, "largest batch that the file has to take")
    opset: int | None = option(None, "version of the ONNX operators, 18 to 23", shown=str(export.OPSET))
    threads: Count | None = option(None, "number of CPU threads", shown="all cores")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output.suffix not in (".onnx", ".pt2"):
            raise OptionError(f"--output must end in .onnx or .pt2, got {str(self.output)!r}.")
        if self.opset is not None and self.output.suffix != ".onnx":
            raise OptionError(f"--opset is for .onnx files, but --output is {self.output.name!r}.")
        if self.warm_up and self.data is None:
            raise OptionError("--warm-up needs --data: the images that the method learns from.")


# Images come from --data or are random, so how files are resized hardly matters.
_WITHOUT_FLAG = {"output", "device", "crop", "interpolation", "compile"}
_FLAGS = {field.name for field in dataclasses.fields(ExportSettings)} - _WITHOUT_FLAG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta export``."""
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="file to write, ending in .onnx or .pt2"
    )
    add_config(parser)
    add_flags(parser, ExportSettings, only=_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Export, and print how file and model compare."""
    output: Path = arguments.output
    settings = ExportSettings(output=output, **given(arguments, ExportSettings, only=_FLAGS))
    bar = progress_bar(None, "step", desc=f"exporting {output.name}")
    with torch_threads(settings.threads), bar:
        outcome = _export(settings, bar.set_postfix_str)
    print(outcome)
    described = export.describe(output)
    form = "torch.export" if described.opset is None else f"ONNX opset {described.opset}"
    print(
        f"\n{output}: {described.method}, {form}, {output.stat().st_size / 1e6:.1f} MB, "
        f"batches of 1 to {described.max_batch} of {' x '.join(map(str, described.input_shape))}"
        + (f", state in {len(described.state)} inputs" if described.state else "")
    )
    return 0


def _export(settings: ExportSettings, progress: Progress) -> export.Check:
    model = _load(settings)
    adapted = adapt(model, settings.method, **settings.options)
    images = None
    if settings.data is not None:
        warm_up = adapted.warm_up_left if settings.warm_up is None else settings.warm_up
        count = warm_up + max(export.BATCH_SIZES) // BATCH_SIZE + 1
        batches = _batches(model, settings, count)
        if settings.warm_up and len(batches) < settings.warm_up:
            raise OptionError(
                f"--warm-up is {settings.warm_up} batches of {BATCH_SIZE}, but --data has {len(batches)}."
            )
        for batch in batches[:warm_up]:
            adapted(batch)
        images = torch.cat(batches[warm_up:] or batches)
        if settings.image_size not in (None, images.shape[-1]):
            raise OptionError(
                f"--image-size is {settings.image_size}, but the images of --data are of side {images.shape[-1]}."
            )
        example = images[:2]
    else:
        example = torch.zeros(2, 3, *preprocessing_of(model, settings.image_size).size)
    size = (int(example.shape[-2]), int(example.shape[-1]))
    if isinstance(model, Classifier):
        square = preprocessing_of(model, size[0]) if size[0] == size[1] else None
        tell(describe_input(model, square, size, vars(settings)))
    else:
        tell(f"input: {size[0]} x {size[1]}, normalized as the model takes it: the file adds no normalization")
    more: dict[str, Any] = {"images": images, "max_batch": settings.max_batch, "progress": progress}
    if settings.opset is not None:
        more["opset"] = settings.opset
    write = export.pt2 if settings.output.suffix == ".pt2" else export.onnx
    return write(adapted, example, settings.output, **more)


def _load(settings: ExportSettings) -> nn.Module:
    name = settings.model
    if not isinstance(name, str) or not is_own(name) or settings.num_classes or "num_classes" in settings.card:
        return settings.load_model()
    if settings.normalization is None and not settings.card:
        return load_module(name, settings.weights).eval()  # a graph needs neither classes nor normalization
    # A model without a card does not show how many classes it has.
    return load(
        name,
        weights=settings.weights,
        normalization=settings.normalization,
        card=settings.card,
        fallback_classes=1,
    )


def _batches(model: nn.Module, settings: ExportSettings, count: int) -> list[Tensor]:
    """Return this number of mixed batches of the dataset, or as many as it has."""
    from findtta import streams
    from findtta.data.open import load as load_data
    from findtta.images import to_input

    assert settings.data is not None
    sized = settings.image_size or (isinstance(model, Classifier) and model.card.side)
    preprocessing = preprocessing_of(model, settings.image_size) if sized else None
    dataset = load_data(settings.data, preprocessing=preprocessing, **settings.data_options).pick()
    stream = streams.make("crossmix", dataset, batch_size=BATCH_SIZE)
    chosen = (dataset.batch(batch.domain_ids, batch.rows) for batch in itertools.islice(stream, count))
    return [to_input(images).contiguous() for images, _ in chosen]
