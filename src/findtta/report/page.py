"""What a report shows: runs that can be compared in one section each, failures, and every run in full.

Here is what the page says; how it looks is up to the template, the style sheet and the script beside this module.
"""

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from findtta._extras import require
from findtta._io import write_file
from findtta.bench.comparison import Comparison, compare
from findtta.bench.naming import AXES, NamedRun, method_text, named_runs, told_apart
from findtta.bench.result import FLAT_GROUPS, VALUES, Result, flat
from findtta.data.dataset import split_domain
from findtta.errors import InputError
from findtta.options import require_known
from findtta.paper.numbers import DATASETS, NETWORKS, PrintedCell, printed_accuracy
from findtta.plots import Look
from findtta.report import charts
from findtta.report.template import fill
from findtta.tables import Cell

TITLE = "Test-time adaptation results"
_PURPOSE = "writing a report"  # that needs the extra
FILTERS = ("method", "stream", "data", "model")
_OPEN_SETTINGS = 2  # with more of them, charts are folded away at first
#: What the name of a setting says if it takes more than data and model to tell settings apart.
_TELLING = ("domains", "images", "batch size", "reset", "device", "weights", "identity")
_LAYER_CHARTS: Mapping[str, Literal["groups", "score"]] = {"groups per batch": "groups", "sensitivity": "score"}
#: What the names of models contain that are those of the paper.
_MODELS = dict(zip(NETWORKS, (r"resnet-?50", r"resnet-?26", r"efficientvit_m5"), strict=True))


def write(
    results: Iterable[Result], path: str | os.PathLike[str], *, title: str = TITLE, paper: str | None = None
) -> Path:
    """Write results of runs, done or failed, as one HTML page that needs no other file, and return its path.

    ``title`` is the heading of the page. ``paper`` is a dataset of the paper (``"cifar10-c"``, ``"cifar100-c"`` or
    ``"imagenet-c"``) whose numbers to show also beside runs on data that the paper does not have. Raises
    ``InputError`` if there is no result, ``OptionError`` if the file cannot be written, and ``MissingExtraError``
    if the extra ``report`` is not installed.
    """
    write_file(Path(path), page(results, title=title, paper=paper).encode())
    return Path(path)


def page(results: Iterable[Result], *, title: str = TITLE, paper: str | None = None) -> str:
    """Return the page as text; the same results give the same page, in whatever order they come."""
    for package in ("jinja2", "matplotlib"):
        require(package, "report", _PURPOSE)
    if paper is not None:
        require_known("paper", paper, DATASETS)
    results = sorted(results, key=lambda result: result.digest)
    if not results:
        raise InputError("results: there is none to report on; 'findtta run' and 'findtta bench' make some.")
    runs = named_runs(results)
    settings = _settings([run.result for run in runs])
    names = {
        "method": [method for setting in settings for method in setting.methods],
        "stream": [stream for setting in settings for stream in setting.streams],
        "data": [setting.shared.get("data", "") for setting in settings],
        "model": [setting.shared.get("model", "") for setting in settings],
    }
    looks = {kind: charts.looks(list(dict.fromkeys(names[kind]))) for kind in ("method", "stream")}
    for kind in FILTERS:  # the names in tables first, in their order
        others = sorted({run.words[kind] for run in runs if kind in run.words})
        names[kind] = [name for name in dict.fromkeys([*names[kind], *others]) if name]
    columns = {
        run.digest: place[1] for setting in settings for place, runs in setting.runs.items() for run in runs
    }
    html = fill(
        "page.html.j2",
        _PURPOSE,
        title=title,
        filters=names,
        settings=settings,
        measures={name: value for name, value in VALUES.items() if value.label},
        facts=(*AXES["data"], *AXES["model"], "batch size", "reset", "device"),
        paper={setting.id: counterparts(setting, paper) for setting in settings},
        charts={setting.id: _charts(setting, looks) for setting in settings},
        keys={k: {n: (charts.variable(look[0]), look[2]) for n, look in of.items()} for k, of in looks.items()},
        is_open=len(settings) <= _OPEN_SETTINGS,
        runs=[_run(run, columns) for run in runs],
        is_finite=math.isfinite,
    )
    return charts.clean(html)


@dataclass(frozen=True)
class Setting:
    """Runs that can be compared: they differ in nothing but method, stream and seed."""

    id: str
    title: str
    shared: Mapping[str, str]  # what all runs have in common, in words
    methods: Sequence[str]  # in the order of the rows
    streams: Sequence[str]  # in the order of the columns
    tables: Mapping[str, Comparison]  # methods against streams, by the name of the value
    runs: Mapping[tuple[str, str], Sequence[Result]]  # by method and stream: those that are done, one per seed

    def of_stream(self, stream: str) -> dict[str, Sequence[Result]]:
        """Return the runs on a stream, by method."""
        return {method: self.runs[method, stream] for method in self.methods}

    def cell(self, value: str, method: str, stream: str) -> Cell | None:
        """Return what a method gave on a stream."""
        return self.tables[value].rows[self.methods.index(method)].cells[self.streams.index(stream)]

    def mean(self, value: str, method: str) -> float | None:
        """Return the mean over the streams; None if a run is missing, since its stream may be a harder one."""
        cells = [self.cell(value, method, stream) for stream in self.streams]
        seeds = len(self.tables[value].seeds)
        means = [_finite(cell) for cell in cells if cell and len(cell.values) == seeds]
        known = [mean for mean in means if mean is not None]
        return fmean(known) if len(known) == len(cells) else None

    def strength(self, value: str, method: str, stream: str) -> float:
        """Return how good a number is among those of its column, from 0 for the worst to 1 for the best."""
        column = {name: _finite(self.cell(value, name, stream)) for name in self.methods}
        known = [mean for mean in column.values() if mean is not None]
        worst, best = (min, max) if VALUES[value].higher_is_better else (max, min)
        own = column[method]
        if own is None or best(known) == worst(known):
            return 0.0
        return (own - worst(known)) / (best(known) - worst(known))

    def collapses(self, method: str, stream: str) -> str:
        """Describe the collapses of a method on a stream."""
        return "; ".join(what for _, what in charts.collapses(self.runs[method, stream]))

    def domains(self, stream: str) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
        """Return the names of the domains of a stream, and the accuracy of each method in each of them over seeds.

        A severity that is the same for all is not part of the names.
        """
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for method, runs in self.of_stream(stream).items():
            for run in runs:
                for domain in run.config["data"]["domains"]:
                    if domain in run.per_domain:
                        found[method][domain].append(run.per_domain[domain]["accuracy"])
        means = {method: {name: fmean(seeds) for name, seeds in parts.items()} for method, parts in found.items()}
        domains = list(dict.fromkeys(name for parts in means.values() for name in parts))
        is_one = len({split_domain(domain)[1] for domain in domains}) == 1
        return {name: (split_domain(name)[0] if is_one else name).replace("_", " ") for name in domains}, means


def _finite(cell: Cell | None) -> float | None:
    return cell.mean if cell and cell.mean is not None and math.isfinite(cell.mean) else None


def _settings(results: Sequence[Result]) -> list[Setting]:
    by_value = {value: compare(results, value=value) for value in VALUES}
    by_digest = {result.digest: result for result in results}
    shared = [table.shared for table in by_value["accuracy"]]
    titles = told_apart([f"{words.get('data')}, {words.get('model')}" for words in shared], shared, _TELLING)
    settings = []
    for number, (title, *tables) in enumerate(zip(titles, *by_value.values(), strict=True), start=1):
        first, by_name = tables[0], dict(zip(VALUES, tables, strict=True))
        methods, streams = [row.titles[0] for row in first.rows], [column.title for column in first.columns]
        runs = {
            (method, stream): [by_digest[digest] for digest in cell.digests.values()] if cell else []
            for method, row in zip(methods, first.rows, strict=True)
            for stream, cell in zip(streams, row.cells, strict=True)
        }
        settings.append(Setting(f"setting-{number}", title, first.shared, methods, streams, by_name, runs))
    return settings


def _charts(setting: Setting, looks: Mapping[str, Mapping[str, Look]]) -> dict[str, Any]:
    """Return the charts of a setting by stream (cost, curves) and by title and method (layers), and the layers."""
    costs: dict[str, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for method, stream in setting.runs:
        parts = [_finite(setting.cell(value, method, stream)) for value in ("latency", "accuracy", "memory")]
        if None not in parts:
            costs[stream][method] = tuple(parts)  # type: ignore[assignment]
    layers = {
        method: {s: found for s in setting.streams if (found := charts.layers_of(setting.runs[method, s]))}
        for method in setting.methods
    }
    return {
        "cost": {
            stream: charts.cost_chart(costs[stream], looks["method"], f"Accuracy against latency in {stream}")
            for stream in setting.streams
        },
        "curves": {
            stream: charts.curve_chart(setting.of_stream(stream), looks["method"], f"Running accuracy in {stream}")
            for stream in setting.streams
        },
        "layers": {
            (f"{method}: {title}", method): charts.layer_chart(found, looks["stream"], f"{method}: {title}", what)
            for method, found in layers.items()
            for title, what in _LAYER_CHARTS.items()
        },
        "layer_tables": {method: found for method, found in layers.items() if found},
        "domains": {stream: table for stream in setting.streams if len((table := setting.domains(stream))[0]) > 1},
    }


@dataclass(frozen=True)
class Counterpart:
    """What the paper printed for a stream, and what differs from the runs, in words."""

    dataset: str
    model: str
    cells: Mapping[str, PrintedCell]  # by method
    differences: list[str]


def counterparts(setting: Setting, paper: str | None) -> tuple[dict[str, Counterpart], list[str]]:
    """Return what the paper printed for the streams of a setting, and the methods that it has any number for.

    The dataset is that of the setting, or else the one that is named.
    """
    found = {}
    for stream in setting.streams:
        config = next((runs[0].config for runs in setting.of_stream(stream).values() if runs), None)
        if config and (part := counterpart(config, dataset_of(config) or paper)):
            found[stream] = part
    methods = [method for method in setting.methods if any(method in part.cells for part in found.values())]
    return found, methods


def counterpart(config: Mapping[str, Any], dataset: str | None) -> Counterpart | None:
    """Return what the paper printed for such a stream of a dataset, or None; whatever else differs is said."""
    stream, domains = config["stream"], config["data"]["domains"]
    model = next(
        (name for name, known in _MODELS.items() if re.search(known, config["model"]["name"].lower())), None
    )
    found = dataset and printed_accuracy(
        stream["scenario"], dataset, stream["settings"], network=model, domains=len(domains)
    )
    if not found or not dataset:
        return None
    paper, said = found.settings, []
    if dataset_of(config) != dataset:
        said.append(f"data {config['data']['name']}, in the paper {DATASETS[dataset]}")
    elif config["data"]["generated"]:
        said.append("corruptions generated anew, in the paper the published images")
    severities = sorted({severity for _, severity in map(split_domain, domains) if severity is not None})
    for what, ours, theirs in (
        ("model {}", model or config["model"]["name"], paper["model"]),
        ("{} domains", len(domains), int(paper.get("domains", 15))),
        ("severity {}", ", ".join(map(str, severities)) or "none", str(paper["severity"])),
        ("batch size {}", stream["batch_size"], paper["batch_size"]),
    ):
        if ours != theirs:
            said.append(f"{what.format(ours)}, in the paper {theirs}")
    if config["reset"] != "never":
        said.append("state reset when the domain changes, which the paper does not do")
    cells = {method_text(cell.row.method, cell.row.options): cell for cell in found.cells.values()}
    return Counterpart(DATASETS[dataset], paper["model"], cells, said)


def dataset_of(config: Mapping[str, Any]) -> str | None:
    """Return which of the paper's datasets a run was made with, also if its corruptions were generated anew."""
    name = re.sub(r"( \(generated\)|-generated)$", "", config["data"]["name"].lower())
    return name if name in DATASETS else None


def _run(run: NamedRun, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a run in full, with the names by which filters know it."""
    result, row = run.result, flat(run.result)
    words = {name: run.words.get(name, "") for name in FILTERS}
    words["stream"] = columns.get(result.digest, words["stream"])
    rounds = [f"{value:.2f}" for value in result.per_round]
    facts = {title: {name: row[name] for name in FLAT_GROUPS[title]} for title in FLAT_GROUPS}
    facts["measurements"]["accuracy per round"] = ", ".join(rounds) if len(rounds) > 1 else None
    facts["environment"] |= {name: value for name, value in sorted(result.environment.items()) if name not in row}
    return {"result": result, "words": words, "facts": facts}
