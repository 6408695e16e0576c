"""Draw the pictures of the documentation, from the shipped model and drawn shapes.

python docs/make_pictures.py [NAME ...]     write docs/pictures/NAME: batch.png, concept.svg, groups.png, drift.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import findtta
from findtta.bench import Planner, RunSpec
from findtta.data import MAIN_CORRUPTIONS
from findtta.plots import CYCLE, LOOKS, render
from findtta.predictor import PredictorSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "pictures"
MODEL = "shapes-resnet26"


def _mixed_batch(domains: tuple[str, ...], size: int) -> tuple[Any, ...]:
    """Images, labels and domains of the first batch of ``crossmix`` with seed 0."""
    data = findtta.data.load("shapes", count=200).pick(list(domains), severity=5)
    batch = next(iter(findtta.streams.make("crossmix", data, batch_size=size, seed=0)))
    images, labels = data.batch(batch.domain_ids, batch.rows)
    return images, labels, [data.domains[number].partition("@")[0] for number in batch.domain_ids], data.classes


def _bare(axis: Axes, colour: str = "0.8", width: float = 0.8) -> None:
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, color=colour, linewidth=width)


def batch(figure: Figure) -> None:
    """One mixed batch before and after: the one whose gain is nearest to that of the whole stream."""
    plan = Planner().plan(RunSpec(images=160))  # the stream crossmix of the demo
    predictors = {name: PredictorSettings(model=MODEL, method=name).predictor() for name in ("source", "find")}
    seen = []
    for part in plan.stream:
        images, labels = plan.dataset.batch(part.domain_ids, part.rows)
        right = {name: predict(images).probabilities.argmax(1) == labels for name, predict in predictors.items()}
        seen.append((images, right))
    full = [(images, right) for images, right in seen if len(images) == 64]
    total = {name: np.concatenate([right[name] for _, right in seen]) for name in predictors}
    gain = 64 * (total["find"].mean() - total["source"].mean())
    images, right = min(full, key=lambda one: abs(one[1]["find"].sum() - one[1]["source"].sum() - gain))
    for axis, (name, title) in zip(
        figure.subplots(1, 2), {"source": "unadapted model", "find": "FIND"}.items(), strict=True
    ):
        tiles = [_tile(image, good) for image, good in zip(images, right[name], strict=True)]
        axis.imshow(np.concatenate([np.concatenate(tiles[row : row + 8], 1) for row in range(0, 64, 8)]))
        axis.axis("off")
        axis.set_title(f"{title}: {right[name].sum()} of 64 correct", fontsize=11)
    figure.suptitle(
        f"One batch of fifteen corruptions; framed: correct, faded: wrong. All {len(total['find']):,} samples: "
        f"{100 * total['source'].mean():.1f}% and {100 * total['find'].mean():.1f}%.",
        fontsize=9,
    )


def _tile(image: NDArray[Any], good: bool) -> NDArray[Any]:
    """An image with a frame if it is classified correctly, and faded if not."""
    tile = np.full((40, 40, 3), 255, np.uint8)
    if good:
        tile[1:-1, 1:-1] = (0, 158, 115)
    tile[4:-4, 4:-4] = image if good else 190 + image // 4
    return tile


def concept(figure: Figure) -> None:
    """What three kinds of statistics do with a mixed batch: a scheme."""
    random = np.random.default_rng(4)
    kinds = {"fog": (2.3, 0.5), "noise": (-1.9, 0.7), "contrast": (0.5, 0.25)}
    values = {name: mean + spread * random.standard_normal(7) for name, (mean, spread) in kinds.items()}
    colours = dict(zip(values, (CYCLE[0], CYCLE[1], CYCLE[2]), strict=True))
    everything = np.concatenate(list(values.values()))
    whole = (everything.mean(), everything.std())
    rows = {
        "source model\nstatistics of the training data": dict.fromkeys(values, (0.0, 1.0)),
        "batch statistics (tbn)\none mean for the whole batch": dict.fromkeys(values, whole),
        "FIND\nevery group of similar images its own": {
            name: (found.mean(), found.std()) for name, found in values.items()
        },
    }
    thumbnails, left, right = figure.subfigures(1, 3, width_ratios=[1, 2.5, 1.8])
    data = findtta.data.load("shapes", count=40).pick(["fog", "gaussian_noise", "contrast"], severity=5)
    thumbnails.suptitle("a mixed batch", fontsize=10)
    for position, axis in enumerate(thumbnails.subplots(3, 2).ravel()):
        kind = (0, 1, 2, 1, 2, 0)[position]
        axis.imshow(data.images(data.domains[kind], np.array([position + 3]))[0])
        _bare(axis, list(colours.values())[kind], 3)
    left.suptitle("a channel of a layer, before", fontsize=10)
    right.suptitle("and after normalisation", fontsize=10)
    before, after = left.subplots(3, 1, sharex=True), right.subplots(3, 1, sharex=True)
    for row, (title, statistics) in enumerate(rows.items()):
        for line, (name, found) in enumerate(values.items()):
            mean, deviation = statistics[name]
            shared = len(set(statistics.values())) == 1
            low, high = (0, 3) if shared else (line, line + 1)
            before[row].fill_betweenx(
                [low, high],
                mean - deviation,
                mean + deviation,
                color=colours[name] if not shared else "0.6",
                alpha=0.12 if shared else 0.3,
                lw=0,
            )
            before[row].plot([mean, mean], [low, high], color="0.3" if shared else colours[name], lw=1.5)
            before[row].plot(found, np.full(7, line + 0.5), "o", color=colours[name], ms=4)
            after[row].plot((found - mean) / deviation, np.full(7, line + 0.5), "o", color=colours[name], ms=4)
        after[row].axvspan(-1, 1, color="0.6", alpha=0.15, lw=0)
        after[row].axvline(0, color="0.3", lw=1.5)
        before[row].set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")
        for axis in (before[row], after[row]):
            axis.set(ylim=(0, 3), yticks=[], xlim=(-4, 4), xticks=[-2, 0, 2])
            axis.spines["left"].set_visible(False)
    for line, name in enumerate(values):
        after[0].text(4, line + 0.5, name, color=colours[name], fontsize=9, ha="right", va="center")
    after[-1].set_xlabel("grey: what the next layer was trained on", fontsize=8)
    before[-1].set_xlabel("bands: mean and standard deviation used", fontsize=8)


def groups(figure: Figure) -> None:
    """The groups of one layer in the middle of the model."""
    images, _, domains, _ = _mixed_batch(("gaussian_noise", "fog", "contrast", "pixelate", "brightness"), 40)
    predictor = PredictorSettings(model=MODEL, method="find").predictor()
    layer = len(predictor.layers) // 2
    found = predictor(images).groups[:, layer]
    members = sorted((np.flatnonzero(found == label) for label in np.unique(found)), key=len, reverse=True)
    colours = dict(zip(sorted(set(domains)), CYCLE, strict=False))
    axis = figure.subplots()
    column, row, widest = 0.0, 0, 12.0
    for group in members:
        if column and column + len(group) > widest:
            column, row = 0.0, row + 1
        for offset, sample in enumerate(group):
            left, top = column + offset, -1.35 * row
            axis.imshow(images[sample], extent=(left + 0.08, left + 0.92, top + 0.08, top + 0.92), zorder=2)
            axis.add_patch(_box(left + 0.04, top + 0.04, 0.92, colours[domains[sample]], fill=True))
        axis.plot([column + 0.05, column + len(group) - 0.05], [-1.35 * row - 0.08] * 2, color="0.3", lw=2)
        column += len(group) + 0.5
    axis.set(xlim=(-0.1, widest + 0.6), ylim=(-1.35 * row - 0.3, 1.1), aspect="equal")
    axis.axis("off")
    handles = [
        axis.plot([], [], "s", color=colour, label=name.replace("_", " "))[0] for name, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        f"{len(members)} groups of {len(images)} images in {predictor.layers[layer]} of the shipped ResNet-26 "
        "(underlined: normalised together; frame: the corruption)",
        fontsize=9,
    )


def _box(left: float, top: float, side: float, colour: str, *, fill: bool) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), side, side, facecolor=colour if fill else "none", edgecolor=colour, zorder=1)


def drift(figure: Figure) -> None:
    """Drift of single images by severity."""
    predictor = PredictorSettings(model=MODEL, method="find").predictor()
    data = findtta.data.load("shapes", count=64)
    axis = figure.subplots()
    values = []
    for severity in range(6):
        picked = data.pick(["clean"] if severity == 0 else list(MAIN_CORRUPTIONS), severity=severity or 5)
        found = []
        for part in findtta.streams.make("crossmix", picked, batch_size=64, seed=0):
            images, _ = picked.batch(part.domain_ids, part.rows)
            found.append(np.nanmean(predictor(images).drift, axis=1))
        values.append(np.concatenate(found))
    colour = LOOKS["find"][0]
    for severity, found in enumerate(values):
        low, median, high = np.quantile(found, [0.05, 0.5, 0.95])
        axis.plot([severity] * 2, [low, high], color=colour, lw=8, alpha=0.3, solid_capstyle="butt")
        axis.plot(severity, median, "o", color=colour)
    axis.axhline(np.quantile(values[0], 0.95), color="0.4", ls="--", lw=1)
    axis.text(
        -0.3, np.quantile(values[0], 0.95), " 95% of clean images are below", fontsize=8, color="0.4", va="bottom"
    )
    axis.set(
        xticks=range(6), xticklabels=["clean", "1", "2", "3", "4", "5"], xlabel="severity of the corruption",
        ylabel="drift of an image (KL, mean over layers)", xlim=(-0.4, 5.4),
        title="Median and middle 90%: 64 images, and the same under fifteen corruptions (960 samples each)",
    )  # fmt: skip
    axis.grid(axis="y")


PICTURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "batch.png": (batch, (8.4, 4.7)),
    "concept.svg": (concept, (10, 4.2)),
    "groups.png": (groups, (8.4, 4.4)),
    "drift.png": (drift, (7, 3.4)),
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        draw, size = PICTURES[name]
        kind = name.rpartition(".")[2]
        (FOLDER / name).write_bytes(render(draw, size, title=name, kinds=[kind], dpi=130)[kind])
        if kind == "png":  # a palette takes a third of the space
            Image.open(FOLDER / name).convert("RGB").quantize(256).save(FOLDER / name, optimize=True)
        print(f"docs/pictures/{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
