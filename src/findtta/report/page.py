"""What a report shows: runs that can be compared in one section each, failures, and every run in full."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import findtta
from findtta._extras import require
from findtta._io import write_file
from findtta.bench.comparison import VALUES, Comparison, compare
from findtta.bench.naming import AXES, NamedRun, named_runs
from findtta.bench.result import FLAT_GROUPS, Result, flat
from findtta.data.dataset import split_domain
from findtta.errors import InputError
from findtta.options import require_known
from findtta.paper.numbers import DATASETS, NETWORKS, printed_accuracy
from findtta.plots import Look
from findtta.report import charts
from findtta.tables import Cell

TITLE = "Test-time adaptation results"
FILTERS = ("method", "stream", "data", "model")
MEASURES = {
    "accuracy": "Accuracy",
    "ece": "Calibration",
    "nll": "Likelihood",
    "brier": "Brier score",
    "latency": "Latency",
    "memory": "Memory",
}
ABSENT = "\N{EN DASH}"  # in a cell without a number

_OPEN_SETTINGS = 2  # with more of them, charts are folded away at first
#: What the name of a setting says if it takes more than data and model to tell settings apart.
_TELLING = ("domains", "images", "batch size", "reset", "device", "weights", "identity")
_TINT = 40.0  # per cent of the colour of heat maps, for the best of a column
_FULL_COLOUR = 10.0  # points of difference to the paper

Looks = Mapping[str, Look]
Table = dict[str, Any]  # for the template: see its macro "table"


def write(
    results: Iterable[Result], path: str | os.PathLike[str], *, title: str = TITLE, paper: str | None = None
) -> Path:
    """Write results as one HTML page that needs no other file.

    Args:
        results: Results of runs, done or failed.
        path: The file to write; it appears whole or not at all.
        title: The heading of the page.
        paper: A dataset of the paper (``"cifar10-c"``, ``"cifar100-c"`` or ``"imagenet-c"``) whose numbers to show
            also beside runs on data that the paper does not have.

    Returns:
        The path of the file.

    Raises:
        InputError: If there is no result.
        OptionError: If the file cannot be written.
        MissingExtraError: If the extra ``report`` is not installed.
    """
    write_file(Path(path), page(results, title=title, paper=paper).encode())
    return Path(path)


def page(results: Iterable[Result], *, title: str = TITLE, paper: str | None = None) -> str:
    """Return the page as text; the same results give the same page, in whatever order they come."""
    jinja2 = require("jinja2", "report", "writing a report")
    require("matplotlib", "report", "writing a report")
    if paper is not None:
        require_known("paper", paper, DATASETS)
    results = sorted(results, key=lambda result: result.digest)
    if not results:
        raise InputError("results: there is none to report on; 'findtta run' and 'findtta bench' make some.")
    left_out = [(result.digest, missing) for result in results if (missing := result.what_is_missing())]
    usable = [result for result in results if not result.what_is_missing()]
    runs = sorted(named_runs(usable), key=lambda run: (run.result.started, run.result.digest))
    settings = _settings([run.result for run in runs])
    names = {
        "method": list(dict.fromkeys(method for setting in settings for method in setting.methods)),
        "stream": list(dict.fromkeys(stream for setting in settings for stream in setting.streams)),
        "data": [setting.shared.get("data", "") for setting in settings],
        "model": [setting.shared.get("model", "") for setting in settings],
    }
    looks = {kind: charts.looks(names[kind]) for kind in ("method", "stream")}
    filters = {}
    for kind in FILTERS:  # the names in tables first, in their order
        others = sorted({run.words[kind] for run in runs if kind in run.words})
        filters[kind] = [name for name in dict.fromkeys([*names[kind], *others]) if name]
    columns = {
        run.digest: stream for setting in settings for (_, stream), found in setting.runs.items() for run in found
    }
    script = _file("report.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    html: str = environment.from_string(_file("page.html.j2")).render(
        title=title,
        version=findtta.__version__,
        style=_file("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        filters=filters,
        settings=[_section(setting, looks, paper, len(settings) <= _OPEN_SETTINGS) for setting in settings],
        runs=[_run(run, columns) for run in runs],
        left_out=left_out,
        absent=ABSENT,
    )
    return charts.clean(html)


def _file(name: str) -> str:
    return importlib.resources.files("findtta.report").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Setting:
    """Runs that can be compared: they differ in nothing but method, stream and seed.

    Attributes:
        id: For links.
        title: What distinguishes it from the other settings of the page.
        tables: Methods against streams, by the name of the value.
        runs: For each method and stream, the runs that are done, one per seed.
    """

    id: str
    title: str
    tables: Mapping[str, Comparison]
    runs: Mapping[tuple[str, str], Sequence[Result]]

    @property
    def shared(self) -> Mapping[str, str]:
        """What all runs have in common, in words."""
        return self.tables["accuracy"].shared

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the rows."""
        return [row.titles[0] for row in self.tables["accuracy"].rows]

    @property
    def streams(self) -> list[str]:
        """The streams, in the order of the columns."""
        return [column.title for column in self.tables["accuracy"].columns]

    def cells(self, value: str) -> dict[tuple[str, str], Cell | None]:
        """Return the cells of a table by method and stream."""
        return {
            (method, stream): cell
            for method, row in zip(self.methods, self.tables[value].rows, strict=True)
            for stream, cell in zip(self.streams, row.cells, strict=True)
        }

    def of_stream(self, stream: str) -> dict[str, Sequence[Result]]:
        """Return the runs on a stream, by method."""
        return {method: self.runs[method, stream] for method in self.methods}


def _settings(results: Sequence[Result]) -> list[Setting]:
    by_value = {value: compare(results, value=value) for value in VALUES}
    by_digest = {result.digest: result for result in results}
    titles = _titles([table.shared for table in by_value["accuracy"]])
    settings = []
    for number, (title, *tables) in enumerate(zip(titles, *by_value.values(), strict=True), start=1):
        setting = Setting(f"setting-{number}", title, dict(zip(VALUES, tables, strict=True)), {})
        runs = {
            place: [by_digest[digest] for digest in cell.digests.values()] if cell else []
            for place, cell in setting.cells("accuracy").items()
        }
        settings.append(Setting(setting.id, title, setting.tables, runs))
    return settings


def _titles(shared: Sequence[Mapping[str, str]]) -> list[str]:
    """Name settings by data and model, and by as much else as tells them apart."""
    titles = [f"{words.get('data', '?')}, {words.get('model', '?')}" for words in shared]
    phrases = {"domains": "{}", "images": "{} images", "device": "on {}"}
    for field in _TELLING:
        by_title: dict[str, set[str]] = defaultdict(set)
        for title, words in zip(titles, shared, strict=True):
            by_title[title].add(words.get(field, ""))
        titles = [
            f"{title}, {phrases.get(field, field + ' {}').format(words[field])}"
            if len(by_title[title]) > 1 and words.get(field)
            else title
            for title, words in zip(titles, shared, strict=True)
        ]
    return titles


def _section(setting: Setting, looks: Mapping[str, Looks], paper: str | None, is_open: bool) -> dict[str, Any]:
    fields = (*AXES["data"], *AXES["model"], "batch size", "reset", "device")
    said = setting.tables["accuracy"].notes
    return {
        "id": setting.id,
        "title": setting.title,
        "facts": {field: setting.shared[field] for field in fields if field in setting.shared},
        "measures": [
            (
                title,
                _leaderboard(setting, value),
                [n for n in setting.tables[value].notes if value == "accuracy" or n not in said],
            )
            for value, title in MEASURES.items()
        ],
        "paper": _against_paper(setting, paper),
        "blocks": [block for block in _blocks(setting, looks) if block["figures"] or block["tables"]],
        "is_open": is_open,
    }


def _head(text: str, *, first: str = "descending", **attributes: str) -> dict[str, Any]:
    return {"text": text, "first": first, "attributes": _named(attributes)}


def _cell(
    text: str,
    value: float | None = None,
    *,
    strength: float | None = None,
    small: Iterable[tuple[str, str]] = (),
    **attributes: Any,
) -> dict[str, Any]:
    """Return a cell for the template; columns are sorted by the values of their cells."""
    known = value is not None and math.isfinite(value)
    data = {
        "data_value": f"{value:.6g}" if known else None,
        "style": None if strength is None else f"--strength:{strength:.0f}%",
    }
    return {"text": text, "small": list(small), "attributes": _named({**data, **attributes})}


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}


def _leaderboard(setting: Setting, value: str) -> Table:
    """Return methods against streams, with the mean over the streams."""
    table, measure, cells = setting.tables[value], VALUES[value], setting.cells(value)
    first, better = ("descending", "higher") if measure.higher_is_better else ("ascending", "lower")
    heads = [_head(stream, first=first, data_stream=stream) for stream in setting.streams]
    if len(heads) > 1:
        heads.append(_head("mean", first=first, class_="mean"))
    rows = {
        method: [_measured(setting, value, method, stream, cells) for stream in setting.streams]
        for method in setting.methods
    }
    for method, shown in rows.items() if len(setting.streams) > 1 else ():
        # No mean if a run is missing: its stream may be a harder one.
        complete = [
            cell.mean
            for stream in setting.streams
            if (cell := cells[method, stream])
            and len(cell.values) == len(table.seeds)
            and cell.mean is not None
            and math.isfinite(cell.mean)
        ]
        mean = fmean(complete) if len(complete) == len(setting.streams) else None
        shown.append(_cell(ABSENT if mean is None else f"{mean:.{measure.decimals}f}", mean, class_="mean"))
    seeds = (
        f"seed {table.seeds[0]}"
        if len(table.seeds) == 1
        else f"mean ± standard deviation over {len(table.seeds)} seeds"
    )
    return {
        "caption": f"{measure.title[0].upper()}{measure.title[1:]}, {seeds}; {better} is better",
        "label": f"{MEASURES[value]}, {setting.title}",
        "heads": heads,
        "rows": rows,
        "decimals": measure.decimals,
    }


def _measured(
    setting: Setting, value: str, method: str, stream: str, cells: Mapping[tuple[str, str], Cell | None]
) -> dict[str, Any]:
    cell, seeds = cells[method, stream], len(setting.tables[value].seeds)
    if cell is None or cell.mean is None:
        return _cell(ABSENT if cell is None else "failed", data_stream=stream, class_="absent")
    measure = VALUES[value]
    means = [
        other.mean
        for name in setting.methods
        if (other := cells[name, stream]) and other.mean is not None and math.isfinite(other.mean)
    ]
    worst, best = (min, max) if measure.higher_is_better else (max, min)
    span = best(means, default=0.0) - worst(means, default=0.0)
    strength = _TINT * (cell.mean - worst(means)) / span if span and math.isfinite(cell.mean) else 0.0
    fallen = charts.collapses(setting.runs[method, stream]) if value == "accuracy" else []
    partial = len(cell.values) < seeds
    small = [*_std(cell, measure.decimals)]
    small += [("hidden-text", " best")] if cell.best else []
    small += [("flag", f" {len(cell.values)} of {seeds} seeds")] if partial else []
    small += [("flag", " collapsed")] if fallen else []
    return _cell(
        f"{cell.mean:.{measure.decimals}f}",
        cell.mean,
        strength=strength,
        small=small,
        data_stream=stream,
        class_="tint best" if cell.best else "tint",
        data_partial="" if partial else None,
        title="; ".join(what for _, what in fallen) or None,
    )


def _std(cell: Cell, decimals: int) -> list[tuple[str, str]]:
    return [] if cell.std is None else [("deviation", f" ±\N{NO-BREAK SPACE}{cell.std:.{decimals}f}")]


def _blocks(setting: Setting, looks: Mapping[str, Looks]) -> Iterable[dict[str, Any]]:
    """Yield the parts below the leaderboard, each a heading, an explanation, a legend, figures and tables."""
    accuracy, latency, memory = (setting.cells(value) for value in ("accuracy", "latency", "memory"))

    def block(
        title: str, note: str, figures: Sequence[Any] = (), tables: Sequence[Any] = (), legend: str = ""
    ) -> dict[str, Any]:
        names = {"method": setting.methods, "stream": setting.streams}.get(legend, [])
        keys = {name: (charts.variable(looks[legend][name]), looks[legend][name][2]) for name in names}
        shown = [(caption, svg, {f"data-{kind}": name}) for caption, svg, kind, name in figures if svg]
        return {"title": title, "note": note, "figures": shown, "tables": tables, "legend": legend, "keys": keys}

    points = {}
    for place, cell in accuracy.items():
        means = [part.mean for part in (latency[place], cell, memory[place]) if part and part.mean is not None]
        points.update({place: tuple(means)} if len(means) == 3 else {})
    yield block(
        "Cost against accuracy",
        "Up and to the left is better. The line joins the methods that no other one beats in both accuracy and time. "
        "Latency is the median of a batch; runs were made at different times, so small differences mean nothing.",
        [
            (
                stream,
                charts.cost_chart(
                    {m: points[m, s] for m, s in points if s == stream},
                    looks["method"],
                    f"Accuracy against latency in {stream}",
                ),
                "stream",
                stream,
            )
            for stream in setting.streams
        ],
    )
    yield block(
        "Along the stream",
        "Accuracy of all samples so far, mean over seeds. A cross marks where predictions collapsed.",
        [
            (
                stream,
                charts.curve_chart(setting.of_stream(stream), looks["method"], f"Running accuracy in {stream}"),
                "stream",
                stream,
            )
            for stream in setting.streams
        ],
        legend="method",
    )
    maps = [table for stream in setting.streams if (table := _heat_map(setting, stream))]
    note = "Accuracy in % within each domain, mean over seeds. A stronger colour is a higher accuracy."
    yield block("Domains", note, tables=maps)
    figures, tables = [], []
    for method in setting.methods:
        layers = {s: found for s in setting.streams if (found := charts.layers_of(setting.runs[method, s]))}
        for title, draw in (("groups per batch", charts.group_chart), ("sensitivity", charts.score_chart)):
            figures.append(
                (f"{method}: {title}", draw(layers, looks["stream"], f"{method}: {title}"), "method", method)
            )
        tables += [_layer_table(method, layers)] if layers else []
    yield block(
        "Layers",
        "By layer, from the input to the output; mean over seeds. Bands are one standard deviation of the number of "
        "groups over batches. A filled marker is a layer that FIND* lets be split, a hollow one is not.",
        figures,
        tables,
        legend="stream",
    )


def _heat_map(setting: Setting, stream: str) -> Table | None:
    """Return the accuracy of each method in each domain of a stream."""
    found: dict[str, dict[str, list[float]]] = {}
    for method, runs in setting.of_stream(stream).items():
        for run in runs:
            for domain in run.config["data"]["domains"]:
                part = run.per_domain.get(domain)
                accuracy = charts.number(part.get("accuracy")) if isinstance(part, Mapping) else None
                if accuracy is not None:
                    found.setdefault(method, {}).setdefault(domain, []).append(accuracy)
    means = {method: {domain: fmean(seeds) for domain, seeds in parts.items()} for method, parts in found.items()}
    domains = list(dict.fromkeys(domain for parts in means.values() for domain in parts))
    if len(domains) < 2:
        return None
    values = [value for parts in means.values() for value in parts.values()]
    low, span = min(values), max(values) - min(values)
    kinds, severities = zip(*map(split_domain, domains), strict=True)
    shown = kinds if len(set(severities)) == 1 else domains  # without a severity that is the same for all
    rows = {
        method: [
            _cell(
                f"{parts[domain]:.1f}",
                parts[domain],
                strength=100 * (parts[domain] - low) / span if span else 50.0,
            )
            if domain in parts
            else _cell(ABSENT, class_="absent")
            for domain in domains
        ]
        for method, parts in means.items()
    }
    heads = [_head(name.replace("_", " ")) for name in shown]
    label = f"{stream}: accuracy by domain"
    return {"caption": stream, "label": label, "heads": heads, "rows": rows, "class": "heat", "stream": stream}


def _layer_table(method: str, layers: Mapping[str, Sequence[charts.Layer]]) -> Table:
    """Return the numbers of the charts of layers, for readers who cannot see them and for copying."""
    by_stream = {stream: {layer.name: layer for layer in found} for stream, found in layers.items()}
    rows: dict[str, list[Any]] = {}
    for name in dict.fromkeys(layer.name for found in layers.values() for layer in found):
        rows[name] = []
        for stream, known in by_stream.items():
            layer = known.get(name)
            groups, score = (layer.groups, layer.score) if layer else (None, None)
            texts = (
                ABSENT if groups is None or not layer else f"{groups:.1f} ± {layer.groups_std:.1f}",
                ABSENT if score is None else f"{score:.3g}",
            )
            rows[name] += [
                _cell(text, value, data_stream=stream) for text, value in zip(texts, (groups, score), strict=True)
            ]
    heads = [_head(f"{stream}: {what}", data_stream=stream) for stream in layers for what in ("groups", "score")]
    return {
        "caption": f"{method}: layers",
        "label": f"{method}: layers",
        "heads": heads,
        "rows": rows,
        "method": method,
    }


def _against_paper(setting: Setting, paper: str | None) -> dict[str, Any] | None:
    """Return the paper's numbers beside ours: those of its data, or else of the dataset that was named."""
    printed: dict[str, dict[str, tuple[float, float | None, int]]] = {}
    over, heads, notes = [], [], {}
    for stream in setting.streams:
        config = next((runs[0].config for runs in setting.of_stream(stream).values() if runs), None)
        dataset = _dataset(config) or paper if config else None
        if config is None or dataset is None:
            continue
        network = next(
            (name for name in NETWORKS if re.search(_PATTERNS[name], config["model"]["name"].lower())), None
        )
        count, run = len(config["data"]["domains"]), config["stream"]
        found = printed_accuracy(run["scenario"], dataset, run["settings"], network=network, domains=count)
        if found is None:
            continue
        printed[stream] = {
            _row_name(row): (value, spread, number) for row, value, spread, number in found.cells.values()
        }
        title = f"{stream} (paper: {DATASETS[dataset]}, {found.settings['model']})"
        over.append(_head(title, class_="group", data_stream=stream))
        heads += [_head(f"paper ({DATASETS[dataset]})", class_="group", data_stream=stream)]
        heads += [_head(text, data_stream=stream) for text in ("ours", "difference")]
        notes[stream] = _differences(config, found.settings, dataset, network)
    methods = [method for method in setting.methods if any(method in rows for rows in printed.values())]
    if not methods:
        return None
    cells = setting.cells("accuracy")
    rows = {
        method: [
            cell
            for stream in printed
            for cell in _paper_cells(printed[stream].get(method), cells[method, stream], stream)
        ]
        for method in methods
    }
    table = {
        "caption": "Accuracy in %: the paper's, ours, and the difference in points",
        "label": f"Against the paper, {setting.title}",
        "over": over,
        "heads": heads,
        "rows": rows,
        "class": "paper",
    }
    return {
        "table": table,
        "notes": {stream: said for stream, said in notes.items() if said},
        "images": setting.shared.get("images"),
    }


#: What the names of models contain that are those of the paper.
_PATTERNS = {"ResNet-50": r"resnet-?50", "ResNet-26": r"resnet-?26", "EfficientViT-M5": r"efficientvit_m5"}


def _dataset(config: Mapping[str, Any]) -> str | None:
    """Return which of the paper's datasets a run was made with, also if its corruptions were generated anew."""
    name = re.sub(r"( \(generated\)|-generated)$", "", config["data"]["name"].lower())
    return name if name in DATASETS else None


def _row_name(row: Any) -> str:
    """Return what tables of results call the method of a row of the paper."""
    options = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(row.options.items())
    ]
    return f"{row.method} ({', '.join(options)})" if options else str(row.method)


def _paper_cells(
    printed: tuple[float, float | None, int] | None, ours: Cell | None, stream: str
) -> list[dict[str, Any]]:
    absent = _cell(ABSENT, data_stream=stream, class_="absent")
    theirs, own, gap = _cell(ABSENT, data_stream=stream, class_="absent group"), absent, absent
    if printed:
        value, spread, number = printed
        small = [] if spread is None else [("deviation", f" ± {spread:.2f}")]
        theirs = _cell(
            f"{value:.2f}", value, small=small, data_stream=stream, class_="group", title=f"Table {number}"
        )
    if ours and ours.mean is not None and math.isfinite(ours.mean):
        own = _cell(f"{ours.mean:.2f}", ours.mean, small=_std(ours, 2), data_stream=stream)
        if printed:
            difference = round(ours.mean, 2) - printed[0]
            side = "above" if difference > 0.005 else "below" if difference < -0.005 else "same"
            text = f"{difference:+.2f}".replace("-", "\N{MINUS SIGN}")
            strength = 100 * min(abs(difference) / _FULL_COLOUR, 1.0)
            gap = _cell(text, difference, strength=strength, data_stream=stream, class_=f"gap {side}")
    return [theirs, own, gap]


def _differences(
    config: Mapping[str, Any], settings: Mapping[str, Any], dataset: str, network: str | None
) -> list[str]:
    """Say what is not as in the paper."""
    data, domains = config["data"], int(settings.get("domains", 15))
    severities = sorted({severity for _, severity in map(split_domain, data["domains"]) if severity is not None})
    said = []
    if _dataset(config) != dataset:
        said.append(f"data {data['name']}, in the paper {DATASETS[dataset]}")
    elif data["generated"]:
        said.append("corruptions generated anew, in the paper the published images")
    if network != settings["model"]:
        said.append(f"model {config['model']['name']}, in the paper {settings['model']}")
    if len(data["domains"]) != domains:
        said.append(f"{len(data['domains'])} domains, in the paper {domains}")
    if severities != [settings["severity"]]:
        said.append(f"severity {', '.join(map(str, severities)) or 'none'}, in the paper {settings['severity']}")
    if config["stream"]["batch_size"] != settings["batch_size"]:
        said.append(f"batch size {config['stream']['batch_size']}, in the paper {settings['batch_size']}")
    if config["reset"] != "never":
        said.append("state reset when the domain changes, which the paper does not do")
    return said


def _run(run: NamedRun, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a run in full, with the names by which filters know it."""
    result, (row,) = run.result, flat([run.result])
    stream = columns.get(result.digest, run.words.get("stream", ""))
    words = {**{name: run.words.get(name, "") for name in FILTERS}, "stream": stream}
    rounds = [value for value in result.per_round if isinstance(value, int | float)]
    facts = {
        title: {name: row[name] for name in FLAT_GROUPS[title]}
        for title in ("settings", "measurements", "environment")
    }
    facts["measurements"]["accuracy per round"] = (
        ", ".join(f"{value:.2f}" for value in rounds) if len(rounds) > 1 else None
    )
    facts["environment"] |= {name: value for name, value in sorted(result.environment.items()) if name not in row}
    return {
        "result": result,
        "words": words,
        "attributes": {f"data-{name}": word for name, word in words.items()},
        "state": f"{result.accuracy:.2f} %" if result.is_done else "failed",
        "facts": {
            title: {name.replace("_", " "): _word(value) for name, value in group.items() if value is not None}
            for title, group in facts.items()
        },
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
