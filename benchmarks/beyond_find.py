"""Does ``find-soft`` do better than FIND, and does it do no harm? The study behind docs/beyond-find.md.

Give the clean test images of a dataset and the weights of models trained on it; corruptions are made on the
spot. The settings of the method were chosen on the first images of CIFAR-10 and CIFAR-100 with a ResNet-20; what
is reported comes from others (``--first 5000``)::

    python benchmarks/beyond_find.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt --first 5000
    python benchmarks/beyond_find.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt --ablations
    python benchmarks/drift_evidence.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt

Every method sees the same batches, so differences are paired by sample; their 95% intervals are clustered by
image, over all corruptions and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

import findtta
from findtta.data import MAIN_CORRUPTIONS, load
from findtta.data.dataset import CLEAN, DomainDataset
from findtta.images import to_input
from findtta.intervals import Scores, difference, interval
from findtta.models import load as load_network
from findtta.models.card import Classifier
from findtta.options import parse_assignments, split_list
from findtta.registry import METHOD
from findtta.streams import Stream, make, parse, summarize
from findtta.tables import render

STREAMS = (
    "crossmix",
    "random:variant=paper",
    "shuffle",
    "static",
    "wild",
    "label-sorted",
    "clean",
    "mostly-clean",
)
UNGUARDED = "find-soft:guard=0"
COLOURS = ("#b0b7bf", "#d9a441", "#5b8dd6", "#1a4f9c")
COMPARED = ("find", "source", UNGUARDED)  # with find-soft
Accuracies = dict[str, dict[str, float]]  # by stream and method

#: One thing taken out of ``find-soft`` at a time, or set otherwise.
ABLATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "find": ("find", {}),
    "find, single images": ("find", {"partitioner": "instance"}),
    "find-soft": ("find-soft", {}),
    "no gate, same mean trust": ("find-soft", {"sharpness": 0.0}),
    "no gate, full trust": ("find-soft", {"threshold": 1e-6}),
    "higher threshold": ("find-soft", {"threshold": 0.25}),
    "nearest only": ("find-soft", {"temperature": 0.05}),
    "wider": ("find-soft", {"temperature": 0.4}),
    "whole batch": ("find-soft", {"temperature": 100.0}),
    UNGUARDED: ("find-soft", {"guard": 0.0}),
    "alpha 0.8": ("find-soft", {"alpha": 0.8}),
    "alpha 0.6": ("find-soft", {"alpha": 0.6}),
}


def main() -> None:
    """Run the study and print it."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0", help="of the streams, with commas (default: 0)")
    parser.add_argument("--streams", default=",".join(STREAMS), help="with commas (default: all)")
    parser.add_argument(
        "--methods", default="source,tbn,find,find-soft", help="with commas, such as find-soft,find-soft:guard=0"
    )
    parser.add_argument("--ablations", action="store_true", help="take find-soft apart instead")
    parser.add_argument("--figure", metavar="FILE", help="draw the accuracies as well, as PNG or SVG")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    methods = ABLATIONS if arguments.ablations else dict(map(method, split_list(arguments.methods)))
    if arguments.figure and len(methods) > len(COLOURS):
        parser.error(f"--figure has colours for {len(COLOURS)} methods, not for {len(methods)}.")
    drawn: dict[str, Accuracies] = {}
    for title, network, data in subjects(arguments):
        table, drawn[title] = study(network, data, methods, arguments)
        print(f"\n{title}, batch {arguments.batch_size}, images from {arguments.first}\n")
        print(table, flush=True)
    if arguments.figure:
        draw(drawn, arguments.figure)


def method(text: str) -> tuple[str, tuple[str, dict[str, Any]]]:
    """Return a method as it is written, and its name and options."""
    name, options = METHOD.split(text)
    return text, (name, parse_assignments("--methods", options))


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return the arguments that say which models see which images."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="clean test images (an npz, a folder), or shapes")
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="ARCH=WEIGHTS",
        help="architecture and weights; may be repeated",
    )
    parser.add_argument("--num-classes", type=int, help="of the weights (default: as the data says)")
    parser.add_argument("--normalization", help="of the weights, such as cifar10 (default: that of their card)")
    parser.add_argument("--first", type=int, default=0, help="the first image used (default: 0)")
    parser.add_argument("--images", type=int, default=200, help="per corruption (default: 200)")
    parser.add_argument("--clean", type=int, default=2000, help="clean images (default: 2000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=torch.device, default="cpu", help="such as cuda (default: cpu)")
    return parser


def subjects(arguments: argparse.Namespace) -> Iterator[tuple[str, Classifier, DomainDataset]]:
    """Yield a title, the model and the data for every model that was named."""
    data = load(arguments.data)
    for named in arguments.model:
        arch, _, weights = named.partition("=")
        network = (
            load_network(
                arch,
                weights=weights,
                num_classes=arguments.num_classes or len(data.classes),
                normalization=arguments.normalization,
            )
            if weights
            else load_network(arch)
        )
        yield f"{Path(arguments.data).stem}, {arch}", network.to(arguments.device), data


def study(
    network: Classifier,
    data: DomainDataset,
    methods: Mapping[str, tuple[str, dict[str, Any]]],
    arguments: argparse.Namespace,
) -> tuple[str, Accuracies]:
    """Run all methods on all streams, and return the table and the accuracies in it."""
    adapted = {name: findtta.adapt(network, method, **options) for name, (method, options) in methods.items()}
    compared = [name for name in COMPARED if {name, "find-soft"} <= set(methods)]
    rows, accuracies = [], {}
    for text in arguments.streams.split(","):
        scores: dict[str, dict[int, Scores]] = {name: {} for name in methods}
        for seed in [int(seed) for seed in arguments.seeds.split(",")]:
            part, stream = stream_of(text, data, seed, arguments)
            batches = batches_of(part, stream)
            images = part.image_numbers(stream.domain_ids, stream.rows)
            for name, model in adapted.items():
                model.reset()
                correct = right(model, batches, arguments.device)
                scores[name][seed] = Scores.sort(images, stream.domain_ids, correct)
        title, about = text.partition(":")[0], summarize(stream, part)
        composition = (
            f"{about.samples:,} of {len(np.unique(images)):,}",
            f"{about.domains:.1f}",
            f"{about.classes:.1f}",
        )
        accuracies[title] = {name: interval(found.values()).mean for name, found in scores.items()}
        differences = [difference(scores["find-soft"], scores[name]) for name in compared]
        means = [f"{mean:.1f}" for mean in accuracies[title].values()]
        rows.append((title, *composition, *means, *(found.text() for found in differences if found)))
    header = ["stream", "samples of images", "domains", "classes", *methods]
    return render([*header, *(f"find-soft - {name}" for name in compared)], rows), accuracies


class Window(DomainDataset):
    """The rows of a dataset from ``first`` on, so that images for choosing and for reporting differ."""

    def __init__(self, whole: DomainDataset, first: int, count: int) -> None:
        smallest = min(len(whole.labels(domain)) for domain in whole.domains)
        if first + count > smallest:
            raise SystemExit(f"--first {first} and {count} images from there: the data has {smallest} images.")
        self.whole, self.rows = whole, np.arange(first, first + count)
        self.name, self.domains, self.classes = whole.name, whole.domains, whole.classes
        self.image_size, self.generated = whole.image_size, whole.generated

    def labels(self, domain: str) -> NDArray[np.int64]:
        """Return the labels of the rows in the window."""
        return self.whole.labels(domain)[self.rows]

    def images(self, domain: str, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return images of the window."""
        return self.whole.images(domain, self.rows[rows])


def stream_of(
    text: str, data: DomainDataset, seed: int, arguments: argparse.Namespace
) -> tuple[DomainDataset, Stream]:
    """Return one stream, and the data that it is made of."""
    name, settings = (text, {}) if text == CLEAN else parse(text)
    if name == CLEAN:
        part: DomainDataset = Window(data, arguments.first, arguments.clean).pick([CLEAN])
        name = "static"
    else:
        drifted = [f"{corruption}@5" for corruption in MAIN_CORRUPTIONS]
        window = Window(data, arguments.first, arguments.images)
        part = window.pick([*drifted, CLEAN] if name == "mostly-clean" else drifted)
    return part, make(name, part, batch_size=arguments.batch_size, seed=seed, **settings)


def batches_of(part: DomainDataset, stream: Stream) -> list[tuple[Any, NDArray[np.int64]]]:
    """Return images and labels of the batches of a stream."""
    return [part.batch(batch.domain_ids, batch.rows) for batch in stream]


def right(
    model: torch.nn.Module, batches: Sequence[tuple[Any, NDArray[np.int64]]], device: torch.device
) -> NDArray[np.bool_]:
    """Return which images a model classifies right."""
    answers = ((model(to_input(images, device)).argmax(1).cpu().numpy(), labels) for images, labels in batches)
    return np.concatenate([answer == np.asarray(labels) for answer, labels in answers])


def draw(accuracies: Mapping[str, Accuracies], path: str) -> None:
    """Draw bars: a panel for each model, a cluster for each stream."""
    figure = Figure(figsize=(4.5 * len(accuracies), 3), layout="constrained")
    panels = figure.subplots(1, len(accuracies), squeeze=False)
    for panel, (title, streams) in zip(panels[0], accuracies.items(), strict=True):
        methods = list(next(iter(streams.values())))
        width, first = 0.8 / len(methods), 0.4 / len(methods) - 0.4
        for index, (method, colour) in enumerate(zip(methods, COLOURS[-len(methods) :], strict=True)):
            places = [place + first + index * width for place in range(len(streams))]
            panel.bar(places, [row[method] for row in streams.values()], width, label=method, color=colour)
        panel.set_xticks(range(len(streams)), list(streams))
        panel.set_title(title)
        panel.set_ylabel("accuracy")
    panels[0][0].legend(frameon=False, ncols=2)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
