"""The paper's numbers for the same thing, as far as it printed any.

A stream corresponds to a column of the paper if scenario and data are the same, and delta or the number of rounds
where the column has them. Everything else that differs (network, domains, severity, batch size, ...) is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.data.dataset import split_domain
from findtta.errors import UnknownNameError, close_matches
from findtta.paper import numbers

#: The datasets of the paper, with the names that readers know them by.
DATASETS: Mapping[str, str] = {"cifar10-c": "CIFAR10-C", "cifar100-c": "CIFAR100-C", "imagenet-c": "ImageNet-C"}

_NETWORKS = {"ResNet-50": r"resnet-?50", "ResNet-26": r"resnet-?26", "EfficientViT-M5": r"efficientvit_m5"}
_OF_A_STREAM = ("delta", "rounds")


@dataclass(frozen=True)
class Printed:
    """A number of the paper.

    Attributes:
        value: The number.
        spread: What is printed after a plus-minus sign, or None.
        table: The number of the table it is printed in.
    """

    value: float
    spread: float | None
    table: int


@dataclass(frozen=True)
class Counterpart:
    """What corresponds to a stream in the paper.

    Attributes:
        dataset: The paper's data, as readers know it.
        network: The paper's network.
        printed: The paper's numbers, by what tables call the method.
        differences: What differs from the runs, in words.
    """

    dataset: str
    network: str
    printed: Mapping[str, Printed]
    differences: tuple[str, ...]


def require_dataset(name: str | None) -> None:
    """Raise unless the paper has numbers for this data, or none is named."""
    if name is not None and name not in DATASETS:
        raise UnknownNameError(
            f"paper must be one of {', '.join(DATASETS)}, got {name!r}.{close_matches(name, DATASETS)}"
        )


def dataset_of(config: Mapping[str, Any]) -> str | None:
    """Return which of the paper's datasets a run was made with, also if its drift was generated anew."""
    name = re.sub(r"( \(generated\)|-generated)$", "", config["data"]["name"].lower())
    return name if name in DATASETS else None


def counterpart(config: Mapping[str, Any], dataset: str) -> Counterpart | None:
    """Find what corresponds to the stream of a run.

    Args:
        config: All that decided the result of the run.
        dataset: The paper's data to compare it with, one of ``DATASETS``.

    Returns:
        The counterpart, or None if the paper has nothing on such a stream.
    """
    candidates = [
        (_distance(config, settings), table, column, settings)
        for table in numbers.tables().values()
        for column in table.columns
        if column.unit == "%" and not column.average_of
        for settings in [table.settings_of(column.name)]
        if _is_same_stream(config["stream"], settings) and settings.get("dataset") == dataset
    ]
    if not candidates:
        return None
    nearest = min(distance for distance, *_ in candidates)
    # Ties are tables of the same experiment: the ablation has rows that the main table has not.
    printed: dict[str, Printed] = {}
    for distance, table, column, _ in candidates:
        if distance == nearest:
            for row in table.rows:
                number = Printed(row.values[column.name], row.spreads.get(column.name), table.numbers[0])
                printed.setdefault(_method_in_words(row), number)
    settings = next(settings for distance, *_, settings in candidates if distance == nearest)
    differences = tuple(_differences(config, settings, dataset))
    return Counterpart(DATASETS[dataset], settings["model"], printed, differences)


def _is_same_stream(stream: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    own = stream["settings"]
    return stream["scenario"] == settings.get("scenario") and all(
        own.get(name, settings[name]) == settings[name] for name in _OF_A_STREAM if name in settings
    )


def _distance(config: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[bool, int]:
    """Return how far a column is from a run: first by the network, then by the number of domains."""
    is_main_network = settings["model"] == "ResNet-50"
    network = _network(config)
    same = network == settings["model"] if network else is_main_network
    return (
        not same,
        abs(_domains(settings) - len(config["data"]["domains"])) + (not same and not is_main_network),
    )


def _network(config: Mapping[str, Any]) -> str | None:
    """Return which of the paper's networks the model is by its name, or None."""
    name = config["model"]["name"].lower()
    return next((network for network, pattern in _NETWORKS.items() if re.search(pattern, name)), None)


def _domains(settings: Mapping[str, Any]) -> int:
    return int(settings.get("domains", 15))


def _method_in_words(row: numbers.PaperRow) -> str:
    """Return what tables of results call the method of a row."""
    options = [f"{name}={_word(value)}" for name, value in sorted(row.options.items())]
    return f"{row.method} ({', '.join(options)})" if options else row.method


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differences(config: Mapping[str, Any], settings: Mapping[str, Any], dataset: str) -> Sequence[str]:
    """Say what is not as in the paper."""
    data, stream, model = config["data"], config["stream"], config["model"]["name"]
    severities = sorted({severity for _, severity in map(split_domain, data["domains"]) if severity is not None})
    said = []
    if dataset_of(config) != dataset:
        said.append(f"data {data['name']}, in the paper {DATASETS[dataset]}")
    elif data["generated"]:
        said.append("corruptions generated anew, in the paper the published images")
    if _network(config) != settings["model"]:
        said.append(f"network {model}, in the paper {settings['model']}")
    if len(data["domains"]) != _domains(settings):
        said.append(f"{len(data['domains'])} domains, in the paper {_domains(settings)}")
    if severities != [settings["severity"]]:
        said.append(f"severity {', '.join(map(str, severities)) or 'none'}, in the paper {settings['severity']}")
    if stream["batch_size"] != settings["batch_size"]:
        said.append(f"batch size {stream['batch_size']}, in the paper {settings['batch_size']}")
    if config["reset"] != "never":
        said.append("state reset when the domain changes, which the paper does not do")
    return said
