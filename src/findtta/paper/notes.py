"""What a reader must know of our numbers: where the setting differs from the paper's, what they come from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import findtta
from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.models.zoo import ARCHITECTURES, SHIPPED
from findtta.paper.items import DATASETS, Context, Reading, Results, Setup
from findtta.paper.numbers import METHODS, table

#: Images per domain in the paper, where it says so.
PAPER_IMAGES: Mapping[str, int | None] = {"cifar10-c": 10_000, "cifar100-c": 10_000, "imagenet-c": None}
PAPER_SEEDS = 3
PAPER_BATCH_SIZE = 64

_SHOWN = 3  # of names in a list
_STREAMS: Mapping[str, str] = {
    "random": "Random: the batches of Shuffle in random order (variant 'paper'). The text of the paper describes "
    "another stream (variant 'text'), which does not fit its numbers; the authors' code is not public.",
    "wild": "Wild: batches choose their domains as those of Random do (variant 'paper'), and each domain shows "
    "its classes in runs; how the authors combined the two is not said.",
    "shuffle": "Shuffle: batches of one domain and of all domains in turn, half of the images each; the paper "
    "gives no shares.",
    "static": "Static: one domain after the other, and batches end where a domain ends.",
    "lifelong": "Life-long: every round is CrossMix in another order, without a reset.",
}
#: Models that are the networks of the paper, as far as its text says.
_SAME_NETWORK: Mapping[str, tuple[str, ...]] = {
    "ResNet-50": ("resnet50", "resnet50-caffe", "resnet50-thin", "timm:resnet50"),
    "ResNet-26": ("resnet26",),
    "EfficientViT-M5": ("efficientvit_m5", "timm:efficientvit_m5"),
}


def display(method: str) -> str:
    """Return what the paper calls a method."""
    return table("main-resnet50").row(method).printed if method in METHODS else method


def dataset_title(setup: Setup) -> str:
    """Return the dataset that a setup stands for, and the data themselves in brackets if they are others."""
    title = DATASETS[setup.stands_for]
    return title if is_dataset(setup.data, setup.stands_for) else f"{title} ({Path(setup.data).name})"


def is_dataset(name: str, dataset: str) -> bool:
    """Return whether data of this name are, as far as can be told, a dataset of the paper, published or generated.

    >>> is_dataset("cifar10_test-c (generated)", "cifar10-c"), is_dataset("cifar100-c", "cifar10-c")
    (True, False)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    base = dataset.removesuffix("-c")
    return re.search(rf"{base}(?!\d)", plain) is not None


def setting_notes(context: Context, results: Results, network: str) -> list[str]:
    """Return where the setting differs from the paper's.

    Args:
        context: What the item was made with.
        results: What it is made of.
        network: The network of the paper.
    """
    notes = []
    if context.quick:
        notes.append("A quick look (--quick): few images, so that the numbers are rough.")
    for setup, configs in _by_setup(context, results):
        notes += _data_notes(setup, configs) + _model_notes(setup, configs[0], network)
    if len(context.seeds) != PAPER_SEEDS:
        seeds = "one seed" if len(context.seeds) == 1 else f"{len(context.seeds)} seeds"
        notes.append(f"{seeds.capitalize()}; the paper has {PAPER_SEEDS}.")
    if context.batch_size != PAPER_BATCH_SIZE:
        notes.append(f"Batches of {context.batch_size}; the paper has {PAPER_BATCH_SIZE}.")
    seen = dict.fromkeys(config["stream"]["scenario"] for config in _configs(results))
    notes += [_STREAMS[scenario] for scenario in seen if scenario in _STREAMS]
    notes += _cold_start_notes(results)
    return notes


def outcome_notes(results: Results) -> list[str]:
    """Return what went wrong: runs that failed, and predictions that collapsed."""
    failed = defaultdict(list)
    for name, error in [*_failed_runs(results.runs), *_failed_readings(results.readings)]:
        reason = " ".join(error.get("message", "").split())
        failed[f"{error.get('type')}: {reason}"].append(name)
    notes = [f"Failed: {_some(names)}. {reason}" for reason, names in failed.items()]
    collapsed = defaultdict(list)
    for result in results.runs:
        if result.collapse is not None:
            place = f"{result.spec['stream']}, seed {result.spec['seed']}, batch {result.collapse['batch']}"
            collapsed[result.spec["method"]].append(place)
    notes += [
        f"The predictions of {display(name)} collapsed: {_some(places)}." for name, places in collapsed.items()
    ]
    return notes


def provenance(context: Context, results: Results) -> dict[str, Any]:
    """Return what the numbers come from, as plain values; data are told by name and content, not by place."""
    streams = {
        config["stream"]["digest"]: {
            "scenario": config["stream"]["scenario"],
            "settings": dict(config["stream"]["settings"]),
            "seed": config["seed"],
            "data": config["data"]["identity"],
            "samples": config["stream"]["samples"],
            "digest": config["stream"]["digest"],
        }
        for config in _configs(results)
    }
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
        "machines": [machine for index, machine in enumerate(machines) if machine not in machines[:index]],
        "runs": sorted(result.digest for result in results.runs),
        "readings": sorted(reading.digest for reading in results.readings),
    }


def _configs(results: Results) -> list[Mapping[str, Any]]:
    return [record.config for record in results.records if record.config]


def _by_setup(context: Context, results: Results) -> list[tuple[Setup, list[Mapping[str, Any]]]]:
    """Return each setup that something was made with, with the configs of it all."""
    asked = [(result.spec, result.config) for result in results.runs]
    asked += [(reading.probe["spec"], reading.config) for reading in results.readings]
    found = []
    for setup in context.setups:
        own = context.spec(setup).to_dict()
        same = [
            config
            for spec, config in asked
            if config and all(spec.get(name) == own[name] for name in ("data", "data_options", "model", "weights"))
        ]
        if same:
            found.append((setup, same))
    return found


def _data_notes(setup: Setup, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    data, title = configs[0]["data"], DATASETS[setup.stands_for]
    if not is_dataset(f"{setup.data} {data['name']}", setup.stands_for):
        notes = [
            f"ANOTHER DATASET: {data['name']} stands in for {title}. Differences to the paper's numbers say "
            "nothing about whether they are right; compare the order of the methods and their distances."
        ]
    elif data["generated"]:
        notes = [f"{title}: the drift was generated by this package, it is not that of the published files."]
    else:
        notes = []
    counts, expected = _per_domain(configs), PAPER_IMAGES[setup.stands_for]
    if expected is None or counts != [expected]:
        paper = f"{expected:,}" if expected else "not said how many"
        notes.append(f"{title}: {_numbers(counts)} images per domain; the paper: {paper}.")
    return notes


def _model_notes(setup: Setup, config: Mapping[str, Any], network: str) -> list[str]:
    model, title = config["model"], DATASETS[setup.stands_for]
    weights = f"weights {model['weights'][:12]}"
    # A name that we know tells what it is; of others we know only what the user says.
    claimed = setup.network == network and model["name"] not in (*ARCHITECTURES, *SHIPPED)
    if claimed or model["name"] in _SAME_NETWORK[network]:
        return [f"{title}: {network} with our {weights}; the paper's are not public."]
    return [f"{title}: another network, {model['name']} ({weights}), in the place of {network}."]


def _cold_start_notes(results: Results) -> list[str]:
    short = [
        result
        for result in results.runs
        if result.config
        and result.config["method"] == "find-star"
        and result.config["stream"]["batches"] <= result.config["options"]["cold_start"]
    ]
    return ["Some streams are no longer than the cold start of FIND*, where it is FIND."] if short else []


def _setup_record(setup: Setup, configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def _per_domain(configs: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted({config["data"]["images"] // len(config["data"]["domains"]) for config in configs})


def _failed_runs(runs: Iterable[Result]) -> list[tuple[str, Mapping[str, str]]]:
    failed = [result for result in runs if result.status == "failed"]
    return [(RunSpec.from_dict(result.spec).label, result.error or {}) for result in failed]


def _failed_readings(readings: Iterable[Reading]) -> list[tuple[str, Mapping[str, str]]]:
    failed = [reading for reading in readings if reading.status == "failed"]
    return [(reading.probe["kind"].rpartition(":")[2], reading.error or {}) for reading in failed]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more


def _numbers(counts: Sequence[int]) -> str:
    return " or ".join(f"{count:,}" for count in counts)
