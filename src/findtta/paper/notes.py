"""What a reader must know of our numbers: where the setting differs from the paper's, and what they come from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import findtta
from findtta._io import read_toml
from findtta.bench import RunSpec
from findtta.bench.comparison import describe_stream
from findtta.bench.store import without_folders
from findtta.errors import few
from findtta.models.zoo import ARCHITECTURES, SHIPPED
from findtta.paper.context import Context, Setup, is_dataset
from findtta.paper.numbers import DATASETS, METHODS, table
from findtta.paper.study import Results

#: Notes that several items have, and what they are made of.
TEXTS = read_toml(Path(__file__).with_suffix(".toml"))

Config = Mapping[str, Any]


def display(name: str) -> str:
    """Return the name of a method in the paper; another name stays what it is."""
    return table("main-resnet50").row(name).printed if name in METHODS else name


def setting_notes(context: Context, results: Results, network: str) -> list[str]:
    """Return where the setting of results differs from the paper's, for a network of the paper."""
    notes = ["Rough numbers (--quick): few images."] if context.quick else []
    for setup, configs in _by_setup(context, results):
        notes += [*_data_notes(setup, configs), _model_note(setup, configs[0], network)]
        if setup.precision != "float32" and results.runs:
            notes.append(f"{DATASETS[setup.stands_for]}: runs in {setup.precision}, statistics in float32.")
        seen = {name for config in configs for name in (config.get("method"), config["stream"]["scenario"])}
        fewer = {display(name): context.images_of(setup, name) for name in setup.images_of if name in seen}
        notes += [f"{DATASETS[setup.stands_for]}: {images} images for {name}." for name, images in fewer.items()]
    paper = table("main-resnet50").settings
    if len(context.seeds) != paper["seeds"]:
        seeds = "One seed" if len(context.seeds) == 1 else f"{len(context.seeds)} seeds"
        notes.append(f"{seeds}; the paper has {paper['seeds']}.")
    notes += fewer_seeds(context, results)
    if context.batch_size != paper["batch_size"]:
        notes.append(f"Batches of {context.batch_size}; the paper has {paper['batch_size']}.")
    scenarios = dict.fromkeys(config["stream"]["scenario"] for config in _configs(results))
    notes += [TEXTS["streams"][scenario] for scenario in scenarios if scenario in TEXTS["streams"]]
    if any(
        config["method"] == "find-star" and config["stream"]["batches"] <= config["options"]["cold_start"]
        for config in (run.config for run in results.runs if run.config)
    ):
        notes.append("Some streams are no longer than the cold start of FIND*, during which it is FIND.")
    return notes


def fewer_seeds(context: Context, results: Results) -> list[str]:
    """Return for each stream which methods were run with some of the seeds only."""
    seeds: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for run in results.runs:
        if run.is_done:
            options = ", ".join(f"{name} {value}" for name, value in run.spec["options"].items())
            method = display(run.spec["method"]) + f" ({options})" * bool(options)
            seeds[f"{run.config['stream']['scenario']} of {run.config['data']['name']}"][method].add(run.seed)
    notes = []
    for stream, methods in seeds.items():
        fewer = defaultdict(list)
        for method, found in methods.items():
            if len(found) < len(context.seeds):
                fewer[", ".join(map(str, sorted(found)))].append(method)
        notes += [
            f"{stream}, seed {some} alone: {'all' if len(names) == len(methods) else ', '.join(names)}."
            for some, names in fewer.items()
        ]
    return notes


def outcome_notes(results: Results) -> list[str]:
    """Return what went wrong: runs and measurements that failed, and predictions that collapsed."""
    failed = defaultdict(list)
    collapsed = defaultdict(list)
    for result in results.runs:
        if result.status == "failed":
            failed[_reason(result.error)].append(RunSpec.from_dict(result.spec).label)
        if result.collapse is not None:
            place = f"{result.spec['stream']}, seed {result.spec['seed']}, batch {result.collapse['batch']}"
            collapsed[result.spec["method"]].append(place)
    for reading in results.readings:
        if reading.status == "failed":
            failed[_reason(reading.error)].append(f"measurement of {reading.probe['kind']}")
    return [
        *(f"Failed: {few(names, 3, '; ')}. {reason}" for reason, names in failed.items()),
        *(
            f"The predictions of {display(name)} collapsed: {few(places, 3, '; ')}."
            for name, places in collapsed.items()
        ),
    ]


def provenance(context: Context, results: Results) -> dict[str, Any]:
    """Return what the numbers come from, as plain values; data are identified by name and content, not by path."""
    streams = {
        config["stream"]["digest"]: {
            **{name: value for name, value in config["stream"].items() if name != "batch_size"},
            "seed": config["seed"],
            "data": config["data"]["identity"],
        }
        for config in _configs(results)
    }
    by_stream = defaultdict(list)
    for run in results.runs:
        if run.config:
            by_stream[f"{run.spec['stream']} of {run.config['data']['name']}"].append(run)
    machines = [
        {name: record.environment.get(name) for name in ("system", "device", "threads", "python", "torch")}
        for record in results.records
        if record.status == "done"
    ]
    return {
        "command": context.command,
        "findtta": findtta.__version__,
        "quick": context.quick,
        "seeds": list(context.seeds),
        "batch_size": context.batch_size,
        "device": context.device,
        "setups": [_setup_record(setup, configs) for setup, configs in _by_setup(context, results)],
        "streams": list(streams.values()),
        "compositions": {name: describe_stream(runs) for name, runs in by_stream.items()},
        "machines": [machine for index, machine in enumerate(machines) if machine not in machines[:index]],
        "runs": sorted(result.digest for result in results.runs),
        "readings": sorted(reading.digest for reading in results.readings),
    }


def _configs(results: Results) -> list[Config]:
    return [record.config for record in results.records if record.config]


def _by_setup(context: Context, results: Results) -> list[tuple[Setup, list[Config]]]:
    """Return each setup that results were made with, with the configs of these."""
    asked = [(result.spec, result.config) for result in results.runs]
    asked += [(reading.probe["spec"], reading.config) for reading in results.readings]
    found: list[tuple[Setup, list[Config]]] = []
    for setup in context.setups:
        spec = without_folders(context.spec(setup).to_dict())  # as an archive knows it
        own = {name: spec[name] for name in ("data", "data_options", "model", "weights")}
        same = [config for spec, config in asked if config and own.items() <= without_folders(spec).items()]
        found += [(setup, same)] if same else []
    return found


def _data_notes(setup: Setup, configs: Sequence[Config]) -> list[str]:
    data, title = configs[0]["data"], DATASETS[setup.stands_for]
    notes = []
    if not is_dataset(f"{setup.data} {data['name']}", setup.stands_for):
        notes.append(
            f"ANOTHER DATASET: {data['name']} stands in for {title}. Differences to the paper's numbers say "
            "nothing about whether they are right; compare the order of the methods and their distances."
        )
    elif data["generated"]:
        notes.append(f"{title}: the corruptions were generated by this package, they are not the published files.")
    counts, expected = _per_domain(configs), TEXTS["images"].get(setup.stands_for)
    if expected is None or counts != [expected]:
        ours = " or ".join(f"{count:,}" for count in counts)
        paper = f"{expected:,}" if expected else "not stated"
        notes.append(f"{title}: {ours} images per domain; the paper: {paper}.")
    return notes


def _model_note(setup: Setup, config: Config, network: str) -> str:
    model, title = config["model"], DATASETS[setup.stands_for]
    weights = f"weights {model['weights'][:12]}"
    # The package knows what its own names stand for; of other models only the user does.
    claimed = setup.network == network and model["name"] not in (*ARCHITECTURES, *SHIPPED)
    if claimed or model["name"] in TEXTS["networks"][network]:
        return f"{title}: {network} with our {weights}; the paper's are not public."
    return f"{title}: another model, {model['name']} ({weights}), in place of {network}."


def _setup_record(setup: Setup, configs: Sequence[Config]) -> dict[str, Any]:
    data, model = configs[0]["data"], configs[0]["model"]
    return {
        "stands_for": setup.stands_for,
        "data": data["name"],
        "generated": data["generated"],
        "identities": sorted({config["data"]["identity"] for config in configs}),
        "images_per_domain": _per_domain(configs),
        "domains": sorted({len(config["data"]["domains"]) for config in configs}),
        "model": model["name"],
        "weights": model["weights"],
    }


def _per_domain(configs: Iterable[Config]) -> list[int]:
    return sorted({config["data"]["images"] // len(config["data"]["domains"]) for config in configs})


def _reason(error: Mapping[str, str] | None) -> str:
    error = error or {}
    return f"{error.get('type')}: {' '.join(error.get('message', '').split())}"
