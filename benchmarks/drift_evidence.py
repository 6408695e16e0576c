"""Does the divergence of neighbourhoods tell drifted images from clean ones, in every model, with one threshold?

``find-soft`` averages its logarithm over the layers an image has passed, and holds it against a threshold that
falls with depth. This prints both for clean images and for images under all corruptions, at several depths::

    python benchmarks/drift_evidence.py --data cifar10_test.npz --model resnet20=cifar10_resnet20.pt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from beyond_find import argument_parser, batches_of, stream_of, subjects
from matplotlib.figure import Figure
from numpy.typing import NDArray

import findtta
from findtta.algorithms.find_soft import FINDSoftOptions, SoftNorm
from findtta.functional.soft import drift_threshold
from findtta.images import to_input
from findtta.tables import render

DEPTHS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
Evidence = NDArray[np.floating[Any]]  # (images, layers)


def main() -> None:
    """Measure, print and draw."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", metavar="FILE", help="draw it as well, as PNG or SVG")
    parser.set_defaults(images=20, clean=300)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measured = {}
    for title, network, data in subjects(arguments):
        adapted = findtta.adapt(network, "find-soft")
        measured[title] = {
            stream: np.concatenate(
                [
                    evidence(adapted, images, arguments.device)
                    for images, _ in batches_of(*stream_of(stream, data, 0, arguments))
                ]
            )
            for stream in ("clean", "crossmix")
        }
        print(f"\n{title}, batch {arguments.batch_size}\n")
        print(table(measured[title]), flush=True)
    if arguments.figure:
        draw(measured, arguments.figure)


def evidence(adapted: torch.nn.Module, images: Any, device: torch.device) -> Evidence:
    """Return the evidence of drift of every image after every layer."""
    adapted(to_input(images, device))
    layers = [layer for layer in adapted.modules() if isinstance(layer, SoftNorm)]
    drift = torch.stack([layer.last_batch["drift"] for layer in layers], 1).cpu()
    mean: Evidence = (drift.cumsum(1) / torch.arange(1, len(layers) + 1)).double().numpy()
    return mean


def thresholds(layers: int) -> list[float]:
    """Return the threshold after each of so many layers."""
    return [drift_threshold(layer, FINDSoftOptions().threshold) for layer in range(1, layers + 1)]


def table(measured: Mapping[str, Evidence]) -> str:
    """Return medians, the threshold, and how well it separates, at several depths."""
    clean, drifted = measured["clean"], measured["crossmix"]
    layers = clean.shape[1]
    rows = []
    for depth in DEPTHS:
        layer = round(depth * (layers - 1))
        limit = thresholds(layers)[layer]
        rows.append(
            (
                f"{layer + 1} of {layers}",
                *(f"{np.exp(np.median(part[:, layer])):.3f}" for part in (clean, drifted)),
                f"{limit:.3f}",
                *(f"{100 * (np.exp(part[:, layer]) > limit).mean():.0f}" for part in (clean, drifted)),
                f"{area_under_curve(clean[:, layer], drifted[:, layer]):.2f}",
            )
        )
    heads = ["layer", "clean", "drifted", "threshold", "% of clean above", "% of drifted above", "AUC"]
    return render(heads, rows)


def area_under_curve(low: Evidence, high: Evidence) -> float:
    """Return how often a value of ``high`` is above one of ``low``."""
    return float((high[:, None] > low).mean() + 0.5 * (high[:, None] == low).mean())


def draw(measured: Mapping[str, Mapping[str, Evidence]], path: str) -> None:
    """Draw the middle 80% of the images after every layer, and the threshold."""
    figure = Figure(figsize=(4.5 * len(measured), 3), layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False, sharey=True)[0]
    for panel, (title, streams) in zip(panels, measured.items(), strict=True):
        for (stream, values), colour in zip(streams.items(), ("#5b8dd6", "#c0504d"), strict=True):
            low, middle, high = np.exp(np.percentile(values, [10, 50, 90], axis=0))
            layers = np.arange(1, len(middle) + 1)
            panel.fill_between(layers, low, high, color=colour, alpha=0.25, linewidth=0)
            panel.plot(layers, middle, color=colour, label={"clean": "clean", "crossmix": "drifted"}[stream])
        panel.plot(layers, thresholds(len(layers)), color="black", linestyle="--", linewidth=1, label="threshold")
        panel.set_yscale("log")
        panel.set_xlabel("layers passed")
        panel.set_title(title)
    panels[0].set_ylabel("drift")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
