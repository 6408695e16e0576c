"""The interface of an item of the paper: what it needs to know, what it asks to be run, what it makes of it.

An item names runs (``specs``) and measurements that no run gives (``probes``), and turns their results into a
``Document``. It never computes anything itself: ``findtta.paper.gather`` does, through a store, so that whatever
was computed before is not computed again.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.paper.document import Document

#: The datasets of the paper, by what they are called here, with what they are called there.
DATASETS: Mapping[str, str] = MappingProxyType(
    {"cifar10-c": "CIFAR10-C", "cifar100-c": "CIFAR100-C", "imagenet-c": "ImageNet-C"}
)
#: The networks of the paper.
NETWORKS = ("ResNet-50", "ResNet-26", "EfficientViT-M5")

ItemKind = Literal["table", "figure", "control"]


def _require_known(name: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise UnknownNameError(
            f"{name} must be one of {', '.join(known)}, got {value!r}.{close_matches(str(value), known)}"
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A dataset at hand with a model that goes with it, and what of the paper they stand for.

    Attributes:
        stands_for: The dataset of the paper, a name in ``DATASETS``.
        data: ``"shapes"``, the name of a fetched dataset, or a path.
        data_options: Options of its reader.
        model: The model, as in :class:`~findtta.bench.RunSpec`.
        weights: The weights of an architecture.
        normalization: Of the input, if the weights have no card.
        network: The network of the paper that the model stands for, a name in ``NETWORKS``; by default every
            ResNet of the paper, or its transformer if the model's name has ``vit`` in it.
        images: At most so many images per domain, unless the context says otherwise.
    """

    stands_for: str = "cifar10-c"
    data: str = "shapes"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "shapes-resnet26"
    weights: str | None = None
    normalization: str | None = None
    network: str | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        _require_known("as", self.stands_for, DATASETS)
        if self.network is not None:
            _require_known("network", self.network, NETWORKS)

    def fits(self, network: str) -> bool:
        """Return whether the model stands for this network of the paper."""
        if self.network is not None:
            return self.network == network
        return _is_transformer(self.model) == _is_transformer(network)


#: What is used if nothing else is said: drawn shapes and the networks that come with the package.
DEFAULT_SETUPS = (Setup(images=256), Setup(model="shapes-efficientvit_m0", images=256))

QUICK_IMAGES = 128  # the fewest of which Shuffle can make a batch of one domain


@dataclass(frozen=True, kw_only=True)
class Context:
    """What all items are made with.

    Attributes:
        setups: The datasets and models at hand.
        seeds: The seeds; the paper has three.
        methods: The methods to compare; None means those of the item.
        images: At most so many images per domain; it wins over what a setup says.
        batch_size: Samples per batch; the paper has 64.
        device: Where models run.
        quick: Whether a small subset is wanted: one seed and few images.
        command: The command line, for the record.
    """

    setups: tuple[Setup, ...] = DEFAULT_SETUPS
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] | None = None
    images: int | None = None
    batch_size: int = 64
    device: str = "cpu"
    quick: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise OptionError("seeds must be at least one, but there is none.")

    @classmethod
    def quickly(cls, **settings: Any) -> Context:
        """Return a context for a small subset: one seed, few images, unless the settings say otherwise."""
        return cls(**{"seeds": (0,), "images": QUICK_IMAGES, **settings, "quick": True})

    def for_network(self, network: str) -> list[Setup]:
        """Return for each dataset of the paper the setup that stands for it with this network, where there is one.

        A setup that names the network wins over one that merely could stand for it.
        """
        found = []
        for dataset in DATASETS:
            fitting = [setup for setup in self.setups if setup.stands_for == dataset and setup.fits(network)]
            fitting.sort(key=lambda setup: setup.network is None)
            found += fitting[:1]
        return found

    def find(self, dataset: str, network: str = "ResNet-50") -> Setup | None:
        """Return the setup that stands for a dataset of the paper with a network of the paper, or None."""
        return next((setup for setup in self.for_network(network) if setup.stands_for == dataset), None)

    def spec(self, setup: Setup, **settings: Any) -> RunSpec:
        """Return a run with a setup; the seed is the first one unless the settings have another."""
        return RunSpec(
            **{
                "data": setup.data,
                "data_options": setup.data_options,
                "model": setup.model,
                "weights": setup.weights,
                "normalization": setup.normalization,
                "images": setup.images if self.images is None else self.images,
                "batch_size": self.batch_size,
                "device": self.device,
                "seed": self.seeds[0],
                **settings,
            }
        )

    def specs(self, setup: Setup, **settings: Any) -> list[RunSpec]:
        """Return a run for every seed."""
        return [self.spec(setup, **settings, seed=seed) for seed in self.seeds]

    def wants(self, method: str) -> bool:
        """Return whether a method is to be compared."""
        return self.methods is None or method in self.methods


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A measurement that no run gives.

    Attributes:
        kind: The function that takes it, as ``"package.module:function"``. It is called with the planned run and
            the settings, and returns plain values that JSON can write.
        spec: Model, data and stream to take it with.
        settings: Settings of its own, as plain values.
    """

    kind: str
    spec: RunSpec
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the probe as plain values that JSON can write."""
        return {"kind": self.kind, "spec": self.spec.to_dict(), "settings": dict(self.settings)}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a probe gave.

    Attributes:
        digest: The identity of the measurement.
        status: ``"done"``, or ``"failed"`` with an ``error``.
        probe: What was asked for.
        value: What was measured, as plain values.
        config: What decided it: that of the planned run.
        environment: Versions, machine and time.
        error: Type and message of what went wrong.
    """

    digest: str
    status: Literal["done", "failed"]
    probe: Mapping[str, Any]
    value: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, str] | None = None


class Results:
    """What was asked for, with what it gave.

    Args:
        runs: Runs with their results, done or failed.
        readings: Probes with their readings, done or failed.
    """

    def __init__(
        self, runs: Iterable[tuple[RunSpec, Result]] = (), readings: Iterable[tuple[Probe, Reading]] = ()
    ) -> None:
        self._runs = {_key(spec.to_dict()): result for spec, result in runs}
        self._readings = {_key(probe.to_dict()): reading for probe, reading in readings}

    @property
    def runs(self) -> list[Result]:
        """All results of runs, each once."""
        return list({result.digest: result for result in self._runs.values()}.values())

    @property
    def readings(self) -> list[Reading]:
        """All readings of probes, each once."""
        return list({reading.digest: reading for reading in self._readings.values()}.values())

    @property
    def records(self) -> list[Result | Reading]:
        """All results and readings, each once."""
        return [*self.runs, *self.readings]

    def run(self, spec: RunSpec) -> Result | None:
        """Return the result of a run, done or failed, or None if it was not run."""
        return self._runs.get(_key(spec.to_dict()))

    def reading(self, probe: Probe) -> Reading | None:
        """Return the reading of a probe, done or failed, or None if it was not taken."""
        return self._readings.get(_key(probe.to_dict()))

    def values(
        self, specs: Sequence[RunSpec], read: Callable[[Result], float] = lambda result: result.accuracy
    ) -> dict[int, float]:
        """Return a number of every run that is done, by its seed; the accuracy in per cent by default."""
        found = ((spec.seed, self.run(spec)) for spec in specs)
        return {seed: read(result) for seed, result in found if result is not None and result.status == "done"}

    def failed(self, specs: Sequence[RunSpec]) -> bool:
        """Return whether a run of these failed."""
        results = (self.run(spec) for spec in specs)
        return any(result is not None and result.status == "failed" for result in results)

    def also(self, more: Results) -> Results:
        """Return these results and more."""
        both = Results()
        both._runs = {**self._runs, **more._runs}
        both._readings = {**self._readings, **more._readings}
        return both

    def only(self, specs: Iterable[RunSpec], probes: Iterable[Probe] = ()) -> Results:
        """Return the results of these alone."""
        runs = [(spec, result) for spec in specs if (result := self.run(spec)) is not None]
        readings = [(probe, reading) for probe in probes if (reading := self.reading(probe)) is not None]
        return Results(runs, readings)


class Item(ABC):
    """A table or figure of the paper, or a control that it lacks."""

    id: str
    aliases: tuple[str, ...] = ()
    title: str
    kind: ClassVar[ItemKind]

    @abstractmethod
    def specs(self, context: Context) -> list[RunSpec]:
        """Return the runs that the item needs."""

    def probes(self, context: Context) -> list[Probe]:
        """Return the measurements that the item needs besides; most need none."""
        return []

    @abstractmethod
    def document(self, context: Context, results: Results) -> Document:
        """Make the document.

        Args:
            context: What ``specs`` and ``probes`` were asked with.
            results: What they gave; anything may be missing or failed.

        Returns:
            The document.
        """


def setup_from(fields: Mapping[str, Any]) -> Setup:
    """Return a setup from fields as files have them; ``as`` is short for ``stands_for``."""
    given = {("stands_for" if name == "as" else name): value for name, value in fields.items()}
    known = [entry.name for entry in dataclasses.fields(Setup)]
    for name in given:
        if name not in known:
            raise UnknownNameError(
                f"a setup has no {name!r}.{close_matches(name, known)} It has {', '.join(known)} (or 'as')."
            )
    return Setup(**given)


def _is_transformer(name: str) -> bool:
    return "vit" in name.lower()


def _key(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
