"""Making a stream by the name of its scenario."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping
from typing import Any

from findtta.data.dataset import DomainDataset
from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.streams.crossmix import CrossMix
from findtta.streams.gradual import Gradual
from findtta.streams.lifelong import Lifelong
from findtta.streams.mostly_clean import MostlyClean
from findtta.streams.random import Random
from findtta.streams.scenario import Samples, Scenario
from findtta.streams.shuffle import Shuffle
from findtta.streams.static import Static
from findtta.streams.stream import Stream
from findtta.streams.wild import Wild

SCENARIOS: dict[str, type[Scenario]] = {
    "static": Static,
    "crossmix": CrossMix,
    "shuffle": Shuffle,
    "random": Random,
    "wild": Wild,
    "lifelong": Lifelong,
    "gradual": Gradual,
    "mostly-clean": MostlyClean,
}

LARGEST_BATCH = 1024
_LARGEST_SEED = 2**32 - 1


def make(scenario: str, dataset: DomainDataset, *, batch_size: int = 64, seed: int = 0, **settings: Any) -> Stream:
    """Make the stream of a scenario; the same arguments always give the same stream.

    No image is looked at, apart from those that the dataset's own ``identity`` reads.

    Args:
        scenario: A name in ``SCENARIOS``.
        dataset: What the stream is made of, usually picked with :meth:`DomainDataset.pick`.
        batch_size: Samples in a full batch, 1 to 1024.
        seed: Seed of all that is random.
        **settings: Settings of the scenario.

    Returns:
        The stream.
    """
    arrangement = build(scenario, settings)
    batch_size = _whole_number("batch_size", batch_size, 1, LARGEST_BATCH)
    seed = _whole_number("seed", seed, 0, _LARGEST_SEED)
    samples = Samples.of(dataset)
    _require_one_batch(len(samples), batch_size, "the dataset")
    order = arrangement.arrange(samples, batch_size, seed)
    _require_one_batch(len(order.rows), batch_size, f"the stream {scenario!r}")
    return Stream(
        scenario=scenario,
        settings=dataclasses.asdict(arrangement),
        seed=seed,
        batch_size=batch_size,
        dataset=dataset.identity,
        domains=samples.domains,
        domain_ids=order.domain_ids,
        rows=order.rows,
        sizes=order.sizes,
        rounds=order.rounds,
    )


def find(scenario: str) -> type[Scenario]:
    """Return the class of a scenario by its name."""
    if scenario not in SCENARIOS:
        raise UnknownNameError(
            f"stream must be one of {', '.join(SCENARIOS)}, got {scenario!r}.{close_matches(scenario, SCENARIOS)}"
        )
    return SCENARIOS[scenario]


def build(scenario: str, settings: Mapping[str, Any]) -> Scenario:
    """Make a scenario from its settings, refusing those it does not have."""
    kind = find(scenario)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in settings:
        if name not in fields:
            known = [f"  {key} = {field.default!r}: {field.metadata['meaning']}" for key, field in fields.items()]
            explained = " Its settings are:\n" + "\n".join(known) if known else " It has no settings."
            raise UnknownNameError(
                f"stream {scenario!r} has no setting {name!r}.{close_matches(name, fields)}{explained}"
            )
    return kind(**settings)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Read a scenario with settings as written on a command line.

    Args:
        text: Such as ``"crossmix"`` or ``"wild:delta=0.01,variant=paper"``.

    Returns:
        The name of the scenario and its settings, both checked.
    """
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"stream settings must look like {name}:setting=value,setting=value, got {text!r}.")
        settings[key.strip()] = _value(value.strip())
    build(name, settings)
    return name, settings


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


def _whole_number(name: str, value: int, low: int, high: int) -> int:
    expected = f"{name} must be a whole number from {low} to {high}, got {value!r}."
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(expected) from None
    if isinstance(value, bool) or not low <= number <= high:
        raise OptionError(expected)
    return number


def _require_one_batch(count: int, batch_size: int, where: str) -> None:
    if count < batch_size:
        raise OptionError(
            f"batch_size must be at most the number of samples of {where}, {count}, got {batch_size}: "
            "take a smaller batch_size or more samples."
        )
