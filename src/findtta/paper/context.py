"""What items are made with: data and models that stand for those of the paper, seeds, methods."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from findtta._io import read_toml
from findtta.bench import RunSpec
from findtta.bench.grid import resolve
from findtta.data.open import SHAPES
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.images import NORMALIZATION
from findtta.options import (
    MODEL_NAMES,
    Count,
    Options,
    Precision,
    Seed,
    make_options,
    option,
    require_int,
    require_known,
)
from findtta.paper.numbers import DATASETS, METHODS, NETWORKS
from findtta.registry import method_names
from findtta.streams import SCENARIOS

RESNET = "ResNet-50"
QUICK_IMAGES = 128  # the fewest of which Shuffle can make a batch of one domain
NONE = "-"


@dataclass(frozen=True, kw_only=True)
class Setup(Options):
    """A dataset and a model, and what of the paper they stand for.

    ``images`` limits the images per domain, and ``images_of`` those of single methods or streams that are slow;
    ``compile`` and ``precision`` are those of its runs.
    """

    data: str = option(
        SHAPES, "dataset: shapes, a downloaded dataset, or a path", metavar="NAME|PATH", repeat=True
    )
    stands_for: str = option(
        "cifar10-c",
        f"dataset of the paper that it stands for: {', '.join(DATASETS)}",
        flag="as",
        shown="by the name of the data",
        repeat=True,
    )
    model: str = option("shapes-resnet26", MODEL_NAMES, repeat=True)
    weights: str | None = option(None, "weights of an architecture", metavar="FILE", repeat=True)
    normalization: str | None = option(
        None, f"mean and standard deviation of the input: {NORMALIZATION}", shown="the model's own", repeat=True
    )
    network: str | None = option(
        None,
        f"network of the paper that the model stands for: {', '.join(NETWORKS)}",
        shown="every ResNet, or the transformer if the model's name contains vit",
        repeat=True,
    )
    data_options: Mapping[str, Any] = option(dict, "option of all datasets", flag="data-option")
    images: Count | None = None
    images_of: Mapping[str, int] = field(default_factory=dict)
    compile: bool = False
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("as", self.stands_for, DATASETS)
        if self.network is not None:
            require_known("network", self.network, NETWORKS)
        for name, images in self.images_of.items():
            require_known("images_of", name, (*method_names(), *SCENARIOS))
            require_int(f"images_of.{name}", images)

    def fits(self, network: str) -> bool:
        """Return whether the model stands for this network of the paper."""
        if self.network is not None:
            return self.network == network
        return ("vit" in self.model.lower()) == ("vit" in network.lower())

    @property
    def title(self) -> str:
        """The dataset that it stands for, followed by the data themselves in brackets if they are others."""
        title = DATASETS[self.stands_for]
        return title if is_dataset(self.data, self.stands_for) else f"{title} ({Path(self.data).name})"


#: Used unless others are given: generated shapes and the models that come with the package.
DEFAULT_SETUPS = (Setup(images=256), Setup(model="shapes-efficientvit_m0", images=256))


@dataclass(frozen=True, kw_only=True)
class Context(Options):
    """What all items are made with. ``command`` is the command line, for the record."""

    setups: tuple[Setup, ...] = DEFAULT_SETUPS
    command: str = ""
    quick: bool = option(False, f"rough numbers: one seed and {QUICK_IMAGES} images per domain")
    images: Count | None = option(None, "at most this many images per domain, whatever a setup says")
    seeds: tuple[Seed, ...] = option(
        (0, 1, 2), "seeds of streams and methods", metavar="N,...", parse=int, shown="0,1,2; the paper has three"
    )
    methods: tuple[str, ...] | None = option(
        None,
        "methods to compare; those that the paper lacks, such as find-soft, get rows without its numbers",
        metavar="NAME,...",
        shown="those of the paper",
    )
    batch_size: Count = option(64, "images per batch")
    device: str = option("cpu", "device that models run on")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise OptionError("seeds must be at least one, got none.")
        for method in self.methods or ():
            require_known("methods", method, method_names())

    @classmethod
    def quickly(cls, **settings: Any) -> Context:
        """Return a context for rough numbers: one seed and few images, unless the settings say otherwise."""
        return cls(**{"seeds": (0,), "images": QUICK_IMAGES, **settings, "quick": True})

    def for_network(self, network: str) -> list[Setup]:
        """Return for each dataset of the paper the setup that stands for it with this network, where there is one.

        A setup that names the network wins over one that only could stand for it.
        """
        found = []
        for dataset in DATASETS:
            fitting = [setup for setup in self.setups if setup.stands_for == dataset and setup.fits(network)]
            found += sorted(fitting, key=lambda setup: setup.network is None)[:1]
        return found

    def find(self, dataset: str, network: str = RESNET) -> Setup | None:
        """Return the setup that stands for a dataset of the paper with a network of the paper, or None."""
        return next((setup for setup in self.for_network(network) if setup.stands_for == dataset), None)

    def spec(self, setup: Setup, **settings: Any) -> RunSpec:
        """Return a run with a setup; the seed is the first one unless the settings have another."""
        shared = ("data", "data_options", "model", "weights", "normalization", "compile", "precision")
        defaults = {
            **{name: getattr(setup, name) for name in shared},
            "images": self.images_of(setup, settings.get("method"), str(settings.get("stream")).partition(":")[0]),
            "batch_size": self.batch_size,
            "device": self.device,
            "seed": self.seeds[0],
        }
        return RunSpec(**{**defaults, **settings})

    def images_of(self, setup: Setup, *names: str | None) -> int | None:
        """Return how many images per domain a method and stream of these names are run with, or None for all."""
        limits = [setup.images if self.images is None else self.images]
        limits += [setup.images_of.get(name or "") for name in names]
        return min((limit for limit in limits if limit is not None), default=None)

    def specs(self, setup: Setup, **settings: Any) -> list[RunSpec]:
        """Return a run for every seed; ``options`` may be a function of the seed."""
        options = settings.pop("options", {})
        return [
            self.spec(setup, **settings, options=options(seed) if callable(options) else options, seed=seed)
            for seed in self.seeds
        ]

    @property
    def further(self) -> list[str]:
        """The methods to compare that the paper lacks."""
        return [method for method in self.methods or () if method not in METHODS]

    @property
    def compared(self) -> list[str]:
        """All methods to compare: those of the paper in its order, then others."""
        return [*filter(self.wants, METHODS), *self.further]

    def wants(self, method: str) -> bool:
        """Return whether a method is to be compared."""
        return self.methods is None or method in self.methods


def is_dataset(name: str, dataset: str) -> bool:
    """Return whether data of this name are, as far as it tells, a dataset of the paper, published or generated.

    >>> is_dataset("cifar10_test-c (generated)", "cifar10-c"), is_dataset("cifar100-c", "cifar10-c")
    (True, False)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.search(rf"{dataset.removesuffix('-c')}(?!\d)", plain) is not None


def make_setup(fields: Mapping[str, Any]) -> Setup:
    """Return a setup of the fields of a file; without ``as`` the name of the data tells what it stands for."""
    given = {("stands_for" if name == "as" else name): value for name, value in fields.items()}
    setup = make_options("a setup", Setup, given)
    if setup.data != SHAPES and "stands_for" not in given:
        guesses = [name for name in DATASETS if is_dataset(setup.data, name)]
        if len(guesses) != 1:
            raise OptionError(
                f"--as must say which dataset of the paper {setup.data!r} stands for: {', '.join(DATASETS)}."
            )
        setup = dataclasses.replace(setup, stands_for=guesses[0])
    if setup.data != SHAPES and "model" not in given:
        raise OptionError(f"--model must be given with --data {setup.data}: {MODEL_NAMES}.")
    return setup


def read_setups(path: Path) -> tuple[Setup, ...]:
    """Read a TOML file of setups, tables ``[[setup]]``; paths in it are relative to it."""
    content = read_toml(path, "--setup")
    tables = content.pop("setup", None)
    if content or not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise InputError(f"--setup: {str(path)!r} must have tables [[setup]] and nothing else.")
    try:
        return tuple(
            make_setup({name: resolve(name, value, path.parent) for name, value in fields.items()})
            for fields in tables
        )
    except FindTTAError as error:
        raise type(error)(f"--setup: {str(path)!r}: {error}") from error
