"""Making a stream by the name of its scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from findtta.data.dataset import DomainDataset
from findtta.errors import OptionError
from findtta.options import make_options, parse_assignments, require_int, require_known
from findtta.streams.order import Samples, Scenario
from findtta.streams.scenarios import CrossMix, Gradual, Lifelong, MostlyClean, Random, Shuffle, Static
from findtta.streams.stream import Stream
from findtta.streams.wild import Wild

#: The scenarios by name.
SCENARIOS: dict[str, type[Scenario]] = {
    kind.name: kind for kind in (Static, CrossMix, Shuffle, Random, Wild, Lifelong, Gradual, MostlyClean)
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
    # Integers of numpy become Python's, which JSON can write.
    batch_size, seed = (int(value) if isinstance(value, np.integer) else value for value in (batch_size, seed))
    require_int("batch_size", batch_size, 1, LARGEST_BATCH)
    require_int("seed", seed, 0, _LARGEST_SEED)
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
        rounds=np.repeat(np.arange(order.passes), len(order.sizes) // order.passes),
    )


def build(scenario: str, settings: Mapping[str, Any]) -> Scenario:
    """Make a scenario from its settings, refusing those it does not have."""
    require_known("stream", scenario, SCENARIOS)
    return make_options(f"stream {scenario!r}", SCENARIOS[scenario], settings)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Read a scenario with settings as written on a command line.

    Args:
        text: Such as ``"crossmix"`` or ``"wild:delta=0.01,variant=paper"``.

    Returns:
        The name of the scenario and its settings, both checked.
    """
    name, _, rest = text.partition(":")
    settings = parse_assignments(f"settings of stream {name!r}", rest.split(",") if rest else [])
    build(name, settings)
    return name, settings


def _require_one_batch(count: int, batch_size: int, where: str) -> None:
    if count < batch_size:
        raise OptionError(
            f"batch_size must be at most the number of samples of {where}, {count}, got {batch_size}: "
            "take a smaller batch_size or more samples."
        )
