r"""What is a memory of domains worth, and how far is it from knowing them? The study behind docs/beyond-find.md.

Give the clean test images of a dataset and the weights of models trained on it; corruptions are made on the spot.
The settings of ``find-domains`` were chosen on the first images of CIFAR-10 and CIFAR-100 with a ResNet-20; what
is reported comes from others (``--first 5000``)::

    python benchmarks/domains.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt --first 5000 --oracle
    python benchmarks/domains.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt --ablations

With ``--oracle``, two methods that are told the true domain of every image stand beside the others: ``oracle``,
the blend of ``find-domains`` without its gate, on a memory of 64 images of each true domain; and ``tbn, true
domains``, the statistics of the images of the same domain in the batch, without a blend. Every method sees the
same batches, so differences are paired by sample; their 95% intervals are clustered by image, over all corruptions
and seeds. With ``--save FILE`` every finished stream is kept, so that a study that was interrupted goes on.

Natural domains are a folder ``domain/class/image`` and a model with other classes; its logits of a class are the
largest of those named (``151-268`` is a range)::

    python benchmarks/domains.py --data PACS --domains art_painting,cartoon,photo,sketch --streams crossmix \
        --model resnet50-caffe=imagenet_resnet50.pt --num-classes 1000 --images 200 --oracle \
        --classes dog=151-268,elephant=101+385+386,guitar=402+546,horse=339
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from beyond_find import Window, argument_parser, method, subjects
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import findtta
from findtta.algorithms.find_domains import FINDDomains
from findtta.data import MAIN_CORRUPTIONS
from findtta.data.dataset import CLEAN, DomainDataset
from findtta.functional import domains as functional
from findtta.functional.domains import Domains, Joined
from findtta.images import to_input
from findtta.intervals import Scores, difference, interval
from findtta.options import split_list
from findtta.streams import STREAM, Stream, make, parse
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
METHODS = "source,unmix-tns,find,find-soft,find-domains"
OURS = "find-domains"
COMPARED = ("source", "find", "find-soft")  # with find-domains
COLOURS = {"find": "#5b8dd6", "find-soft": "#d9a441", OURS: "#1a4f9c", "oracle": "#222222"}
ORACLE = {"domains": 128, "memory": 64, "threshold": 1e-6, "alpha": 0.7}
Methods = Mapping[str, tuple[Any, dict[str, Any]]]
Study = dict[str, dict[str, Any]]  # rows of a table, by stream


class Oracle(FINDDomains):
    """Domains as they truly are."""

    name = "oracle"
    now: Tensor  # the domains of the batch that comes next

    def join(self, points: Tensor) -> tuple[Domains, Joined]:
        members = torch.nn.functional.one_hot(self.now.to(points.device), len(self.counts)).to(points.dtype)
        added = members.sum(0)
        kept = ((self.options.memory - added) / self.counts.clamp_min(1)).clamp(0, 1)
        counts = self.counts * kept + added
        return Domains(self.centres, counts, self.usage), Joined(kept, members, members, torch.zeros(len(points)))


class WithoutRecall(FINDDomains):
    """The drift that earlier samples of a domain had counts for nothing."""

    name = "without recall"

    def prepare(self, model: torch.nn.Module, sites: Any) -> None:
        super().prepare(model, sites)
        self.layer_count = 0


#: One thing taken out of ``find-domains`` at a time, or set otherwise; constants of the package in capitals.
ABLATIONS: Methods = {
    "find-soft": ("find-soft", {}),
    OURS: (OURS, {}),
    "no gate": (OURS, {"threshold": 1e-6}),
    "gate without recall": (WithoutRecall, {}),
    "few samples trusted as many": (OURS, {"CHANCE": 0.0}),
    "domains never change": (OURS, {"CHANGED": math.inf}),
    "domains not shared": (OURS, {"SHARING": 1e6}),
    "free places not taken": (OURS, {"NEW": 2.0}),
    "no place taken over": (OURS, {"NOVEL": math.inf}),
    "alpha 0.7": (OURS, {"alpha": 0.7}),
    "16 domains": (OURS, {"domains": 16}),
    "64 domains": (OURS, {"domains": 64}),
    "memory of 32": (OURS, {"memory": 32}),
    "memory of 512": (OURS, {"memory": 512}),
}


def main() -> None:
    """Run the study and print it."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0", help="of the streams, with commas (default: 0)")
    parser.add_argument("--streams", default=",".join(STREAMS), help="with commas (default: all)")
    parser.add_argument("--methods", default=METHODS, help=f"with commas (default: {METHODS})")
    parser.add_argument("--domains", help="with commas (default: the fifteen corruptions at severity 5)")
    parser.add_argument("--classes", help="of the data, as NAME=LOGITS with commas (default: one logit each)")
    parser.add_argument("--oracle", action="store_true", help="add methods that are told the true domains")
    parser.add_argument("--ablations", action="store_true", help="take find-domains apart instead")
    parser.add_argument("--save", metavar="FILE", type=Path, help="keep finished streams in a JSON file")
    parser.add_argument(
        "--figure", metavar="FILE", help="draw all that is in that file: the distance to the oracle"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    methods: dict[str, tuple[Any, dict[str, Any]]] = dict(
        ABLATIONS if arguments.ablations else map(method, split_list(arguments.methods))
    )
    if arguments.oracle:
        methods["tbn, true domains"] = (Oracle, {**ORACLE, "memory": 1, "alpha": 0.0})
        methods["oracle"] = (Oracle, ORACLE)
    saved = arguments.save
    found: dict[str, Study] = json.loads(saved.read_text()) if saved and saved.exists() else {}
    for model, network, data in subjects(arguments):
        settings = f"batch {arguments.batch_size}, images from {arguments.first}, seeds {arguments.seeds}"
        title = f"{model}, {settings}" + (", ablations" if arguments.ablations else "")
        rows = found.setdefault(title, {})
        for stream in split_list(arguments.streams):
            if stream not in rows:
                rows[stream] = study(network, data, methods, stream, arguments)
                if saved:
                    saved.write_text(json.dumps(found, indent=1))
        print(f"\n{title}\n\n{table(rows)}", flush=True)
    if arguments.figure:
        draw(found, arguments.figure)


def study(
    network: torch.nn.Module, data: DomainDataset, methods: Methods, text: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run all methods on one stream, and return a row of the table."""
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adapted = []
    for method_, options in methods.values():
        constants = {name: value for name, value in options.items() if name.isupper()}
        settings = {name: value for name, value in options.items() if name not in constants}
        adapted.append((findtta.adapt(network, method_, **settings), constants))
    scores: dict[str, dict[int, Scores]] = {name: {} for name in methods}
    for seed in [int(seed) for seed in arguments.seeds.split(",")]:
        part, stream = stream_of(text, data, seed, arguments)
        images = part.image_numbers(stream.domain_ids, stream.rows)
        logits = logits_of(part.classes, arguments.classes)
        for name, correct in zip(methods, right(adapted, part, stream, logits, arguments.device), strict=True):
            scores[name][seed] = Scores.sort(images, stream.domain_ids, correct)
    compared = [name for name in COMPARED if {name, OURS} <= set(methods)]
    differences = {f"{OURS} - {name}": difference(scores[OURS], scores[name]) for name in compared}
    return {
        "samples of images": f"{len(stream.rows):,} of {len(np.unique(images)):,}",
        **{name: interval(found.values()).mean for name, found in scores.items()},
        **{title: found.text() for title, found in differences.items() if found},
    }


def table(rows: Study) -> str:
    """Return the rows of streams as a table."""
    header = ["stream", *next(iter(rows.values()))]
    cells = (
        [f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows.values()
    )
    return render(header, [(name.partition(":")[0], *row) for name, row in zip(rows, cells, strict=True)])


def stream_of(
    text: str, data: DomainDataset, seed: int, arguments: argparse.Namespace
) -> tuple[DomainDataset, Stream]:
    """Return one stream, and the data that it is made of."""
    name, settings = parse(text)
    if arguments.domains:
        part = data.pick(split_list(arguments.domains), limit=arguments.images)
    else:
        clean = name == CLEAN
        window = Window(data, arguments.first, arguments.clean if clean else arguments.images)
        part = STREAM.load(name).part(window, None if clean else MAIN_CORRUPTIONS)
    return part, make(name, part, batch_size=arguments.batch_size, seed=seed, **settings)


def logits_of(classes: Sequence[str], text: str | None) -> list[list[int]] | None:
    """Return which logits of a model belong to each class, from such as ``dog=151-268,guitar=402+546``."""
    if text is None:
        return None
    named = dict(entry.split("=") for entry in split_list(text))
    ranges = {name: [part.partition("-") for part in logits.split("+")] for name, logits in named.items()}
    return [
        [logit for low, _, high in ranges[name] for logit in range(int(low), int(high or low) + 1)]
        for name in classes
    ]


def right(
    models: Sequence[tuple[Any, Mapping[str, Any]]],
    part: DomainDataset,
    stream: Stream,
    logits: list[list[int]] | None,
    device: torch.device,
) -> list[NDArray[np.bool_]]:
    """Return for each model which images of a stream it classifies right, with these constants of the package."""
    found = []
    for model, _ in models:
        model.reset()
    for batch in stream:
        images, labels = part.batch(batch.domain_ids, batch.rows)
        inputs = to_input(images, device)
        Oracle.now = torch.tensor(batch.domain_ids)
        outputs = []
        for model, constants in models:
            with mock.patch.multiple(functional, **constants) if constants else nullcontext():
                outputs.append(model(inputs))
        if logits:
            outputs = [torch.stack([scores[:, mine].amax(1) for mine in logits], 1) for scores in outputs]
        found.append([scores.argmax(1).cpu().numpy() == np.asarray(labels) for scores in outputs])
    return [np.concatenate(correct) for correct in zip(*found, strict=True)]


def draw(accuracies: Mapping[str, Study], path: str) -> None:
    """Draw where methods are between FIND and the oracle: a panel for each model, a line for each stream."""
    columns, rows = min(2, len(accuracies)), -(-len(accuracies) // 2)
    figure = Figure(figsize=(4.5 * columns, 3 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in panels[len(accuracies) :]:
        empty.set_axis_off()
    for panel, (title, streams) in zip(panels, accuracies.items(), strict=False):
        places = range(len(streams), 0, -1)
        for place, row in zip(places, streams.values(), strict=True):
            panel.plot([row["find"], row["oracle"]], [place, place], color="#d0d4d9", zorder=0)
        for name, colour in COLOURS.items():
            values = [row[name] for row in streams.values()]
            panel.scatter(values, places, color=colour, label=name, marker="|" if name == "oracle" else "o", s=36)
        panel.set_yticks(places, [stream.partition(":")[0] for stream in streams])
        panel.set_title(title.partition(", batch")[0])
        panel.set_xlabel("accuracy")
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
