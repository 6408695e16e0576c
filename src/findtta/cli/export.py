"""Write an adapted model as an ONNX or torch.export file, and check the file against the model."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from torch import Tensor, nn

from findtta.errors import OptionError
from findtta.models.open import NAMES as MODELS
from findtta.options import parse_assignments

COLD_START_BATCH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta export``."""
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write: .onnx or .pt2"
    )
    parser.add_argument(
        "--model", default="shapes-resnet26", metavar="NAME", help=f"{MODELS} (default: %(default)s)"
    )
    parser.add_argument("--method", default="find", metavar="NAME", help="see 'findtta methods' (default: find)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method; may be repeated",
    )
    parser.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    parser.add_argument("--num-classes", type=int, metavar="N", help="if the weights have no card")
    parser.add_argument("--normalization", metavar="NAME", help="of the input, if the weights have no card")
    parser.add_argument(
        "--image-size", type=int, metavar="N", help="side of the images (default: that of --data, or the model's)"
    )
    parser.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="a dataset: find-star runs its cold start on mixed batches of it, and the file is checked on it too",
    )
    parser.add_argument(
        "--data-option", action="append", default=[], metavar="NAME=VALUE", help="an option of the dataset"
    )
    parser.add_argument(
        "--largest-batch", type=int, default=1024, metavar="N", help="that the file has to serve (default: 1024)"
    )
    parser.add_argument("--opset", type=int, metavar="N", help="version of the ONNX operators (default: 18)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all there are)")


def run(arguments: argparse.Namespace) -> int:
    """Export, and print how file and model compare."""
    import findtta
    from findtta import export
    from findtta.models import load

    output: Path = arguments.output
    if output.suffix not in (".onnx", ".pt2"):
        raise OptionError(f"--output must end in .onnx or .pt2, got {str(output)!r}.")
    if arguments.opset is not None and output.suffix != ".onnx":
        raise OptionError(f"--opset is for .onnx files, but --output is {output.name!r}.")
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    model = load(
        arguments.model,
        weights=arguments.weights,
        num_classes=arguments.num_classes,
        normalization=arguments.normalization,
    )
    adapted = findtta.adapt(model, arguments.method, **parse_assignments("--option", arguments.option))
    images = None
    if arguments.data is not None:
        cold_start = getattr(adapted.options, "cold_start", 0)
        batches = _batches(arguments, cold_start + max(export.BATCH_SIZES) // COLD_START_BATCH + 1)
        for batch in batches[:cold_start]:
            adapted(batch)
        images = torch.cat(batches[cold_start:] or batches)
    size = _image_size(arguments, model, images)
    example = torch.zeros(2, 3, size, size) if images is None else images[:2]
    if output.suffix == ".pt2":
        outcome = export.pt2(adapted, example, output, images=images, largest_batch=arguments.largest_batch)
    else:
        outcome = export.onnx(
            adapted,
            example,
            output,
            images=images,
            largest_batch=arguments.largest_batch,
            opset=arguments.opset or export.OPSET,
        )
    print(outcome)
    described = export.describe(output)
    form = "torch.export" if described.opset is None else f"ONNX opset {described.opset}"
    print(
        f"\n{output}: {described.method}, {form}, {output.stat().st_size / 1e6:.1f} MB, "
        f"batches of 1 to {described.largest_batch} of {' x '.join(map(str, described.input_shape))}"
    )
    return 0


def _batches(arguments: argparse.Namespace, count: int) -> list[Tensor]:
    """Return so many mixed batches of the dataset, or as many as it has."""
    from findtta import streams
    from findtta.data.open import load
    from findtta.images import to_input

    dataset = load(arguments.data, **parse_assignments("--data-option", arguments.data_option)).pick()
    stream = streams.make("crossmix", dataset, batch_size=COLD_START_BATCH)
    batches = []
    for batch in itertools.islice(stream, count):
        images, _ = dataset.batch(batch.domain_ids, batch.rows)
        batches.append(to_input(images).contiguous())
    return batches


def _image_size(arguments: argparse.Namespace, model: nn.Module, images: Tensor | None) -> int:
    if images is not None:
        if arguments.image_size not in (None, images.shape[-1]):
            raise OptionError(
                f"--image-size is {arguments.image_size}, but the images of --data are of side {images.shape[-1]}."
            )
        return int(images.shape[-1])
    from findtta.models import preprocessing_of

    return preprocessing_of(model, arguments.image_size).size[0]
