"""How far is ``findtta recommend`` from the best method? The study behind docs/recommend.md.

Give the clean test images of a dataset and the weights of models trained on it, as for ``beyond_find.py``. Methods
predict every stream; labels only serve to judge the recommendation. Evidence, weights (``--fit``) and margin were
chosen with ResNet-20s on images from 0 on; a test needs others::

    python benchmarks/recommend.py --data cifar10_test.npz --model resnet56=cifar10_resnet56.pt --first 5000

With ``--keep FOLDER`` the predictions of each stream are stored, and read instead of computed the next time.
``python benchmarks/recommend.py --kept FOLDER...`` reports on all that several runs have stored.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beyond_find import Window, argument_parser, subjects
from matplotlib.figure import Figure
from numpy.typing import NDArray

from findtta import plots
from findtta.data import MAIN_CORRUPTIONS
from findtta.data.dataset import CLEAN, DomainDataset, split_domain
from findtta.estimates import WEIGHTS
from findtta.images import to_input
from findtta.models.card import Classifier
from findtta.recommendation import CANDIDATES, FIND, JUDGES, SOURCE, Collected, collect, judge, weigh
from findtta.streams import Stream, make, parse
from findtta.tables import render

STREAMS = ("crossmix", "static", "shuffle", "wild", "label-sorted", "mostly-clean", "clean")


@dataclass(frozen=True, eq=False)
class Cell:
    """One model on one stream."""

    title: str
    stream: str
    collected: Collected
    labels: NDArray[np.int64]

    @property
    def dataset(self) -> str:
        """The data that the stream is made of."""
        return self.title.partition(", ")[0]

    def right(self, name: str) -> NDArray[np.bool_]:
        """Return which images a candidate predicts right."""
        return np.asarray(self.collected.predictions[name].argmax(1) == self.labels)

    def accuracy(self, name: str) -> float:
        """Return the true accuracy of a candidate in %."""
        return 100 * float(self.right(name).mean())

    def accuracies(self) -> dict[str, float]:
        """Return the true accuracies of all candidates."""
        return {name: self.accuracy(name) for name in self.collected.methods}


def main() -> None:
    """Run the study and print it."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.set_defaults(images=64, clean=1024, threads=1)
    for action in parser._actions:
        if action.dest in ("data", "model"):
            action.required = False  # not with --kept
    parser.add_argument("--streams", default=",".join(STREAMS), help="with commas (default: all)")
    parser.add_argument("--candidates", default=";".join(CANDIDATES), help="with semicolons (default: all)")
    parser.add_argument("--batches", type=int, help="most batches, evenly spread over a stream (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where predictions are stored")
    parser.add_argument("--kept", type=Path, nargs="+", metavar="FOLDER", help="report on these instead")
    parser.add_argument(
        "--look", type=int, metavar="BATCHES", help="batches per stream that are looked at (default: all)"
    )
    parser.add_argument("--fit", action="store_true", help="fit the weights of the evidence to the accuracies")
    parser.add_argument("--figure", metavar="FILE", help="draw estimated against true accuracy, as PNG or SVG")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.kept and not (arguments.data and arguments.model):
        parser.error("--data and --model must be given, or --kept.")
    cells = list(stored(arguments.kept) if arguments.kept else measured(arguments))
    print(f"\n{table(cells, arguments.look)}\n\n{about_find(cells)}\n\n{estimators(cells)}")
    if arguments.fit:
        print(f"\n{fit(cells)}")
    if arguments.figure:
        draw(cells, Path(arguments.figure))


class Apart(Window):
    """A window in which every corruption shows other images, as traffic does: more images, so less chance."""

    def __init__(self, whole: DomainDataset, first: int, count: int) -> None:
        super().__init__(whole, first, count * len(MAIN_CORRUPTIONS))
        self.count = count

    def labels(self, domain: str) -> NDArray[np.int64]:
        """Return the labels of the rows of a corruption."""
        return self.whole.labels(domain)[self._rows(domain)]

    def images(self, domain: str, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return images of a corruption."""
        return self.whole.images(domain, self._rows(domain)[rows])

    def _rows(self, domain: str) -> NDArray[np.int64]:
        kind = split_domain(domain)[0]
        place = MAIN_CORRUPTIONS.index(kind) if kind in MAIN_CORRUPTIONS else 0
        return self.rows[place * self.count :][: self.count]


def measured(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield every model on every stream."""
    for title, network, data in subjects(arguments):
        for text in arguments.streams.split(","):
            asked = ("first", "images", "clean", "batch_size", "batches", "seed")
            words = (title, text, *(f"{name} {getattr(arguments, name)}" for name in asked))
            name = re.sub(r"\W+", "_", "_".join(words))
            file = arguments.keep and arguments.keep / f"{name}.npz"
            if file and file.exists():
                yield read(file)
                continue
            part, stream = traffic(text, data, arguments)
            cell = run(title, text, network, part, stream, arguments)
            if file:
                write(file, cell)
            yield cell


def traffic(text: str, data: DomainDataset, arguments: argparse.Namespace) -> tuple[DomainDataset, Stream]:
    """Return one stream, and the data that it is made of."""
    name, settings = ("static", {}) if text == CLEAN else parse(text)
    corruptions = [f"{corruption}@5" for corruption in MAIN_CORRUPTIONS]
    if text == CLEAN or name == "mostly-clean":  # where hardly an image comes twice
        window: DomainDataset = Window(data, arguments.first, arguments.clean)
        part = window.pick([CLEAN] if text == CLEAN else [*corruptions, CLEAN])
    else:
        part = Apart(data, arguments.first, arguments.images).pick(corruptions)
    return part, make(name, part, batch_size=arguments.batch_size, seed=arguments.seed, **settings)


def run(
    title: str,
    text: str,
    network: Classifier,
    part: DomainDataset,
    stream: Stream,
    arguments: argparse.Namespace,
) -> Cell:
    """Return one model on one stream."""
    labels: list[NDArray[np.int64]] = []

    def batches() -> Iterator[torch.Tensor]:
        most = min(len(stream), arguments.batches or len(stream))
        for number in range(most):
            batch = stream[len(stream) * number // most]
            images, true = part.batch(batch.domain_ids, batch.rows)
            labels.append(np.asarray(true))
            yield to_input(images, arguments.device)

    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    collected = collect(network, batches(), arguments.candidates.split(";"))
    cell = Cell(title, text.partition(":")[0], collected, np.concatenate(labels))
    found = judge(collected)
    print(f"{title}, {cell.stream}: {found.best.name}, {accuracies_text(cell)}", flush=True)
    return cell


def accuracies_text(cell: Cell) -> str:
    """Return all accuracies in a line."""
    return ", ".join(f"{name} {value:.1f}" for name, value in cell.accuracies().items())


def write(file: Path, cell: Cell) -> None:
    """Store a cell; half precision is enough."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found = cell.collected
    about = {"title": cell.title, "stream": cell.stream, "methods": found.methods, "sizes": found.sizes}
    arrays: dict[str, Any] = {
        f"predictions {name}": values.astype(np.float16) for name, values in found.predictions.items()
    }
    arrays |= {"about": json.dumps(about), "labels": cell.labels, "drift": found.drift}
    if found.drifted is not None:
        arrays["drifted"] = found.drifted
    np.savez(file, **arrays)


def read(file: Path) -> Cell:
    """Return a stored cell."""
    with np.load(file) as data:
        about = json.loads(str(data["about"]))
        predictions = {name: data[f"predictions {name}"].astype(np.float64) for name in about["methods"]}
        methods = {name: (method, options) for name, (method, options) in about["methods"].items()}
        drifted = data.get("drifted")
        collected = Collected(methods, predictions, data["drift"], drifted, tuple(about["sizes"]))
        return Cell(about["title"], about["stream"], collected, data["labels"])


def stored(folders: Sequence[Path]) -> Iterator[Cell]:
    """Yield the cells in folders, sorted by title and stream."""
    cells = [read(file) for folder in folders for file in sorted(folder.glob("*.npz"))]
    yield from sorted(cells, key=lambda cell: (cell.title, STREAMS.index(cell.stream)))


@dataclass(frozen=True)
class Outcome:
    """What is recommended in a cell, and what would have been best; accuracies in %."""

    cell: Cell
    chosen: str
    best: str
    estimate: float
    true: dict[str, float]

    @classmethod
    def of(cls, cell: Cell, look: int | None = None) -> Outcome:
        """Ask for the recommendation from all batches, or from some of them, and look at all labels."""
        found, true = judge(some(cell.collected, look) if look else cell.collected), cell.accuracies()
        return cls(cell, found.best.name, max(true, key=lambda name: true[name]), found.best.estimate, true)

    @property
    def regret(self) -> float:
        """Points that the best method is above the recommended one."""
        return self.true[self.best] - self.true[self.chosen]

    @property
    def gain(self) -> float:
        """Points that the recommended method is above the unadapted model."""
        return self.true[self.chosen] - self.true[SOURCE]

    def text(self) -> str:
        """Return method and regret, which has a star if its paired 95% interval is above 0."""
        best, chosen = (self.cell.right(name).astype(np.float64) for name in (self.best, self.chosen))
        margin = 196 * float((best - chosen).std()) / math.sqrt(len(best))
        return f"{self.chosen} {self.regret:.1f}{'*' * (self.regret > margin)}"


def some(collected: Collected, batches: int) -> Collected:
    """Return what was collected on some of the batches, evenly spread; none of the methods keeps a state."""
    total, rows = len(collected.sizes), np.split(np.arange(sum(collected.sizes)), np.cumsum(collected.sizes)[:-1])
    chosen = [total * number // batches for number in range(min(batches, total))]
    kept = np.concatenate([rows[number] for number in chosen])
    return Collected(
        collected.methods,
        {name: found[kept] for name, found in collected.predictions.items()},
        collected.drift[kept],
        None if collected.drifted is None else collected.drifted[kept],
        tuple(collected.sizes[number] for number in chosen),
    )


def table(cells: Sequence[Cell], look: int | None = None) -> str:
    """Return what is recommended in each cell, and how far it is from the best and from the unadapted model."""
    outcomes = [Outcome.of(cell, look) for cell in cells]
    header = ("model", "stream", "images", "recommended, regret", "estimate", "true", "source", "best", "true ")
    rows = [
        (
            each.cell.title,
            each.cell.stream,
            len(each.cell.labels),
            each.text(),
            f"{each.estimate:.1f}",
            f"{each.true[each.chosen]:.1f}",
            f"{each.true[SOURCE]:.1f}",
            each.best,
            f"{each.true[each.best]:.1f}",
        )
        for each in outcomes
    ]
    groups = {title: [each for each in outcomes if each.cell.title == title] for title in _titles(cells)}
    by_model = [
        (
            title,
            len(group),
            f"{np.mean([each.regret for each in group]):.2f}",
            f"{max(each.regret for each in group):.1f}",
            f"{min(each.gain for each in group):+.1f}",
            f"{np.mean([each.gain for each in group]):+.1f}",
        )
        for title, group in {**groups, "all": outcomes}.items()
    ]
    about = ("model", "streams", "mean regret", "worst", "lowest gain over source", "mean gain")
    return f"{render(header, rows)}\n\n{render(about, by_model)}"


def about_find(cells: Sequence[Cell]) -> str:
    """Return how often it is right about FIND's default, and how good the alpha is that it supports."""
    below, said, both, regrets = 0, 0, 0, []
    for cell in cells:
        true = cell.accuracies()
        gains = {found.name: found.gain for found in judge(cell.collected).candidates if found.method == FIND}
        loses, estimated = true[FIND] < true[SOURCE], gains[FIND] < 0
        below, said, both = below + loses, said + estimated, both + (loses and estimated)
        supported = max(gains, key=lambda name: gains[name])
        regrets.append(max(true[name] for name in gains) - true[supported])
    return (
        f"FIND at its default is below the unadapted model in {below} of {len(cells)} cells, and estimated below "
        f"it in {said}, of which {both} are right; the alpha that is supported has a regret of "
        f"{np.mean(regrets):.2f} points to the best alpha on average, {max(regrets):.1f} at worst"
    )


Estimator = Callable[[Cell, str], float]


def entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy along the last axis, in nats."""
    found: NDArray[np.float64] = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(-1)
    return found


def confidence(cell: Cell, name: str) -> float:
    """Mean probability of the predicted class."""
    return float(cell.collected.predictions[name].max(1).mean())


def mutual_information(cell: Cell, name: str) -> float:
    """Entropy of the mean prediction minus the mean entropy."""
    found = cell.collected.predictions[name]
    return float((entropy(found.mean(0)) - entropy(found).mean()) / math.log(found.shape[1]))


def nuclear_norm(cell: Cell, name: str) -> float:
    """Nuclear norm of the matrix of probabilities, over the largest there is."""
    found = cell.collected.predictions[name]
    largest = math.sqrt(min(found.shape) * len(found))
    return float(np.linalg.svd(found, compute_uv=False).sum() / largest)


def agreement_with_others(cell: Cell, name: str) -> float:
    """Mean agreement with each other candidate."""
    predicted = {other: found.argmax(1) for other, found in cell.collected.predictions.items()}
    others = [other for other in predicted if other != name]
    return float(np.mean([(predicted[name] == predicted[other]).mean() for other in others]))


def weighted_agreement(cell: Cell, name: str) -> float:
    """The same, its opposite weighted by the entropy of the mean prediction as AETTA weights that of dropout."""
    return 1 - (1 - agreement_with_others(cell, name)) / mean_entropy(cell, name) ** 3


def expected_agreement(cell: Cell, name: str) -> float:
    """The agreement that is part of the evidence, alone."""
    return weigh(cell.collected)[0][name].agreement


def mean_entropy(cell: Cell, name: str) -> float:
    """The entropy of the mean prediction, over the largest there is."""
    found = cell.collected.predictions[name]
    return float(entropy(found.mean(0)) / math.log(found.shape[1]))


def spread(cell: Cell, name: str) -> float:
    """The spread that is part of the evidence, alone."""
    return weigh(cell.collected)[0][name].spread


def kept_estimate(cell: Cell, name: str) -> float:
    """The estimate of ``findtta recommend``, without its margins."""
    return next(found.estimate for found in judge(cell.collected).candidates if found.name == name) / 100


def calibrated(cells: Sequence[Cell]) -> Estimator:
    """Share of images above the confidence that as many clean images have as are right (ATC): needs labels."""
    clean = {cell.title: cell for cell in cells if cell.stream == "clean"}

    def estimate(cell: Cell, name: str) -> float:
        if cell.title not in clean:
            return math.nan
        known = clean[cell.title].collected.predictions[name].max(1)
        threshold = np.quantile(known, 1 - clean[cell.title].accuracy(name) / 100)
        return float((cell.collected.predictions[name].max(1) > threshold).mean())

    return estimate


def always(chosen: str) -> Estimator:
    """The same method in every cell."""
    return lambda cell, name: float(name == chosen)


def estimators(cells: Sequence[Cell]) -> str:
    """Return the regret of choosing by each estimator, and how it goes with the true accuracy."""
    compared: dict[str, Estimator] = {
        "confidence": confidence,
        "confidence, threshold from labelled clean images (ATC)": calibrated(cells),
        "mutual information": mutual_information,
        "nuclear norm": nuclear_norm,
        "agreement with the other methods": agreement_with_others,
        "the same, weighted as in AETTA": weighted_agreement,
        "expected agreement with the other methods": expected_agreement,
        "entropy of the mean prediction": mean_entropy,
        "spread over the classes": spread,
        "kept: all of the evidence": kept_estimate,
        "always find": always("find"),
        "always find-soft": always("find-soft"),
    }
    rows = []
    for title, estimate in compared.items():
        regrets, gains, within, errors = [], [], [], []
        for cell in cells:
            true = cell.accuracies()
            found = {name: estimate(cell, name) for name in true}
            chosen = max(found, key=lambda name: found[name])
            regrets.append(max(true.values()) - true[chosen])
            gains.append(true[chosen] - true[SOURCE])
            if len({*found.values()}) > 2:
                within.append(float(np.corrcoef([*found.values()], [*true.values()])[0, 1]))
                errors += [abs(100 * found[name] - true[name]) for name in true]
        rows.append(
            (
                title,
                f"{np.mean(regrets):.2f}",
                f"{max(regrets):.1f}",
                f"{min(gains):+.1f}",
                f"{np.mean(within):.2f}" if within else "",
                f"{np.mean(errors):.1f}" if errors else "",
            )
        )
    header = ("estimator", "mean regret", "worst", "worst against source", "correlation", "mean error of accuracy")
    return render(header, rows)


def fit(cells: Sequence[Cell]) -> str:
    """Return the weights that least squares gives, on differences within each cell, and the level of accuracy."""
    terms, accuracies, levels = [], [], []
    for cell in cells:
        evidence, drift_between = weigh(cell.collected)
        rows = np.array([[*found.terms(drift_between).values()] for found in evidence.values()])
        true = np.array([cell.accuracy(name) / 100 for name in evidence])
        terms.append(rows - rows.mean(0))
        accuracies.append(true - true.mean())
        agreement = np.mean([evidence[name].agreement for name in JUDGES])
        levels.append((1 - agreement, 1 - np.mean([cell.accuracy(name) / 100 for name in JUDGES])))
    weights = np.linalg.lstsq(np.concatenate(terms), np.concatenate(accuracies), rcond=None)[0]
    disagreement, error = np.array(levels).T
    cost = float(disagreement @ error / (disagreement @ disagreement))
    lines = [f"{name} {weight:.2f}" for name, weight in zip(WEIGHTS, weights, strict=True)]
    return f"weights: {', '.join(lines)}; cost of disagreement {cost:.2f}"


def _titles(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.title for cell in cells))


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw estimated against true accuracy: a panel for each dataset, a point for each model and candidate."""
    datasets = dict.fromkeys(cell.dataset for cell in cells)
    panels = [_panel(name, [cell for cell in cells if cell.dataset == name]) for name in datasets]
    columns, size = plots.panel_grid(panels)

    def draw_all(figure: Figure) -> None:
        plots.draw_panels(figure, panels, columns)
        for axis in figure.axes:
            axis.axline((50, 50), slope=1, color="0.7", linewidth=1, zorder=0)  # where estimates are right

    kind = path.suffix[1:]
    drawn = plots.render(draw_all, size, title="estimated and true accuracy", kinds=[kind], dpi=80)
    path.write_bytes(drawn[kind])


def _panel(title: str, cells: Sequence[Cell]) -> plots.Panel:
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in sorted(cells, key=lambda cell: STREAMS.index(cell.stream)):
        points.setdefault(cell.stream, []).extend(
            (candidate.estimate, cell.accuracy(candidate.name)) for candidate in judge(cell.collected).candidates
        )
    series = tuple(
        plots.Series(name=stream, x=tuple(x for x, _ in pairs), y=tuple(y for _, y in pairs))
        for stream, pairs in points.items()
    )
    return plots.Panel(title=title, x="estimated accuracy", y="true accuracy", series=series, style="points")


if __name__ == "__main__":
    main()
