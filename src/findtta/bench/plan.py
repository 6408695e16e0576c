"""A run as it is asked for, and planning it: opens model, data and stream, and gives the run its identity."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

import findtta
from findtta import streams
from findtta.bench.code import behind_method, code_digest, module_files, package_versions
from findtta.data.dataset import DomainDataset, Labels, match_classes
from findtta.data.open import load as load_data
from findtta.errors import OptionError
from findtta.images import NORMALIZATION, Crop, Interpolation, Preprocessing, to_input
from findtta.models import Classifier, load, preprocessing_of, weights_digest
from findtta.models.open import describe_input
from findtta.options import (
    COMPILE,
    MODEL_NAMES,
    PRECISION,
    Count,
    Options,
    Precision,
    Seed,
    Text,
    Whole,
    device_kind,
    make_options,
    option,
)
from findtta.plugins import public_name, public_values
from findtta.registry import build_options, load_method
from findtta.streams import Batch, Stream

#: Images per domain unless told otherwise: the stream of the fifteen corruptions then takes about a minute.
IMAGES = 1000
ALL = "all"


def count(text: str) -> int | str:
    """Read a number of images, or the word for all of them."""
    return ALL if text == ALL else int(text)


@dataclass(frozen=True, kw_only=True)
class RunSpec(Options):
    """What a run is asked to be; everything in it can be written as JSON.

    The meaning of each setting is declared with it, and is also its help text on the command line.
    """

    method: Text = option("find", "the method (see 'findtta methods'), or file.py:NAME")
    options: Mapping[str, Any] = option(dict, "an option of the method; may be repeated", flag="option")
    model: Text = option("shapes-resnet26", MODEL_NAMES)
    weights: Text | None = option(None, "weights of an architecture", metavar="FILE")
    normalization: Text | None = option(
        None, f"mean and standard deviation of the input: {NORMALIZATION}", shown="the model's own"
    )
    image_size: Count | None = option(None, "side that image files are brought to", shown="the model's own")
    crop: Crop | None = option(
        None, "fraction of the shorter side of image files that the centre crop keeps", shown="the model's own"
    )
    interpolation: Interpolation | None = option(None, "how image files are resized", shown="the model's own")
    data: Text = option(
        "shapes",
        "the dataset: shapes, which are drawn on the fly, a name, a path or file.py:NAME; several joined by +",
        metavar="NAME|PATH",
    )
    data_options: Mapping[str, Any] = option(
        dict, "an option of the dataset, such as count=2000; may be repeated", flag="data-option"
    )
    domains: tuple[Text, ...] | None = option(
        None, "domains of the stream, such as fog,snow@3", metavar="NAME,...", shown="those of the scenario"
    )
    severity: tuple[Whole, ...] | Whole | None = option(
        None, "severity of domains that do not name theirs", metavar="N,...", parse=int, shown="the scenario's, 5"
    )
    images: Count | None = option(
        IMAGES, f"images per domain, drawn by the seed, or '{ALL}'", metavar="N", parse=count
    )  # None is all
    stream: Text = option(
        "crossmix", "the scenario and its settings, such as wild:delta=0.01", metavar="NAME[:SETTING=VALUE,...]"
    )
    batch_size: Count = option(64, "samples per batch")
    seed: Seed = option(0, "seed of the images and their order, and of methods that draw at random")
    reset: Literal["never", "domain"] = option(
        "never",
        "'domain' resets the adapted model whenever whole batches come from a new domain; 'never' is how a "
        "deployed model works",
    )
    device: Text = option("cpu", "device the model runs on, such as cuda:0", metavar="DEVICE")
    compile: bool = option(False, COMPILE)
    precision: Precision = option("float32", PRECISION)
    card: Mapping[str, Any] = field(default_factory=dict)  # of a config file, see ``findtta.models.load``

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
            elif name == "images" and value == ALL:
                object.__setattr__(self, name, None)
        super().__post_init__()
        for name, value in (*self.options.items(), *self.data_options.items()):
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise OptionError(
                    f"{name} of a run must be a value that JSON can represent, got {value!r}; give a function or "
                    "class of a file as 'file.py:NAME'."
                ) from None

    @property
    def label(self) -> str:
        """A short description of the run, for progress bars and messages."""
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        method = f"{self.method}:{options}" if options else self.method
        how = ", compiled" * self.compile + f", {self.precision}" * (self.precision != "float32")
        run = f"{method} on {self.stream} of {self.data}, {self.model}, batch {self.batch_size}, seed {self.seed}"
        return run + how

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain values that JSON can represent."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the spec with these settings; the others keep their defaults."""
        return make_options("a run", cls, fields)


def digest_of(value: Mapping[str, Any], length: int = 20) -> str:
    """Return what identifies plain values: the beginning of a digest of them as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


#: The parts of a config that say what computed a run, rather than what the run is.
COMPUTED_BY = ("code", "versions")
#: The parts of the code that decide a run, each with a digest of its own.
CODE = ("method", "model", "data", "evaluation")
#: The first characters of the digest of a run, which it keeps when code and versions change.
SAME_RUN = 12


def run_digest(config: Mapping[str, Any]) -> str:
    """Return the identity of a planned run: first what it is, then what computes it."""
    run = {name: value for name, value in config.items() if name not in COMPUTED_BY}
    return digest_of(run, SAME_RUN) + digest_of({name: config[name] for name in COMPUTED_BY}, 8)


def changes(config: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """Return in words what has changed since the same run was computed with a stored config."""
    old, new = (each["versions"] for each in (stored, config))
    said = [
        f"{name} {old.get(name)} is now {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    # Another version of a package, or of Python, may have other code by itself.
    parts = [] if said else [part for part in CODE if config["code"][part] != stored["code"].get(part)]
    return ", ".join(said) or f"the code of the {' and the '.join(parts)} has changed"


#: The names of all settings of a run that users name.
SETTINGS = tuple(field.name for field in dataclasses.fields(RunSpec) if field.metadata)


@dataclass(frozen=True, eq=False)
class Plan:
    """A run with everything that it needs opened."""

    spec: RunSpec  # what was asked for
    model: Classifier  # the source model, which must not be changed
    dataset: DomainDataset  # the part of the data that the stream is made of
    available: int  # the number of images that its domains have in all
    stream: Stream
    options: Mapping[str, Any]  # those that the method is given
    config: Mapping[str, Any]  # all that decides the result, as plain values without paths
    digest: str  # the identity of the run, see ``run_digest``

    def batches(self, limit: int | None = None) -> Iterator[tuple[Tensor, Labels, Batch]]:
        """Yield the inputs, on the device of the run, and the labels of each batch, up to a limit."""
        for batch in itertools.islice(self.stream, limit):
            images, labels = self.dataset.batch(batch.domain_ids, batch.rows)
            yield to_input(images, self.spec.device), labels, batch


class Planner:
    """Plans runs; models and datasets that several runs share are opened once.

    Args:
        tell: Called with lines about how models and data are put together, each line once.
    """

    def __init__(self, tell: Callable[[str], None] = lambda line: None) -> None:
        self.tell = functools.cache(tell)
        self._data = functools.lru_cache(maxsize=4)(_open_data)
        self._match = functools.lru_cache(maxsize=4)(match_classes)
        self._part = functools.lru_cache(maxsize=4)(_part)
        self._model = functools.lru_cache(maxsize=4)(_open_model)
        self._stream = functools.lru_cache(maxsize=16)(_make_stream)

    def plan(self, spec: RunSpec) -> Plan:
        """Plan a run; wrong names and values raise an error here, before anything is computed."""
        given, options = method_options(spec)
        scenario, settings = streams.parse(spec.stream)
        # The data says how many classes a model without a card has; the model says the size of its images.
        whole = self._data(spec.data, _text(spec.data_options))
        model, weights = self._model(
            spec.model, spec.weights, len(whole.classes), spec.normalization, _text(spec.card)
        )
        asked = {name: getattr(spec, name) for name in ("image_size", "crop", "interpolation")}
        if model.card.side or any(asked.values()):
            preprocessing = preprocessing_of(model, **asked)
            whole = self._data(spec.data, _text(spec.data_options), preprocessing)
            if any(asked.values()) and whole.preprocessing != preprocessing:
                raise OptionError(
                    "image_size, crop and interpolation are for image files without data options of the same "
                    f"purpose, but images of {spec.data!r} are used as they are, or as their options say."
                )
        whole, note = self._match(
            whole, model.card.classes, model.card.num_classes, given="classes" in spec.data_options
        )
        all_images = self._part(whole, scenario, spec.domains, spec.severity)
        dataset = self._part(whole, scenario, spec.domains, spec.severity, spec.images, spec.seed)
        stream, summary = self._stream(dataset, scenario, _text(settings), spec.batch_size, spec.seed)
        things = {
            "method": behind_method(load_method(spec.method), options),
            "model": [spec.model.rpartition(":")[0], *map(type, model.modules())],
            "data": [spec.data.rpartition(":")[0], *_behind_data(dataset)],
            "evaluation": ["findtta.bench.evaluate", "findtta.images"],
        }
        config = {
            "method": public_name(spec.method),
            "options": public_values(dataclasses.asdict(options)),
            "model": {
                "name": _model_name(spec.model),
                "weights": weights,
                # How it normalizes and resizes its input, which the weights do not show.
                "input": {"mean": model.card.mean, "std": model.card.std, "size": model.card.input_size},
            },
            "data": {
                "name": dataset.name,
                "identity": all_images.identity,  # the seed says which of them are used
                "generated": dataset.generated,
                "domains": list(dataset.domains),
                "images": len(dataset),
            },
            "stream": {
                "scenario": stream.scenario,
                "settings": dict(stream.settings),
                "batch_size": spec.batch_size,
                "batches": len(stream),
                "samples": len(stream.rows),
                "domains_per_batch": summary.domains,
                "classes_per_batch": summary.classes,
                "digest": stream.digest,
            },
            "seed": spec.seed,
            "reset": spec.reset,
            "device": device_kind(spec.device, compile=spec.compile, precision=spec.precision),
            "code": {part: code_digest(module_files(behind)) for part, behind in things.items()},
            "versions": {
                **package_versions(["PIL", *itertools.chain.from_iterable(things.values())]),
                "findtta": findtta.__version__,
                "torch": torch.__version__.partition("+")[0],
                "numpy": np.__version__,
                "python": ".".join(platform.python_version_tuple()[:2]),
            },
        }
        for line in (describe_input(model, whole.preprocessing, whole.image_size, vars(spec)), note):
            if line:
                self.tell(line)
        config = json.loads(_text(config))  # as it will be read back: lists for tuples
        return Plan(spec, model, dataset, len(all_images), stream, given, config, run_digest(config))


def method_options(spec: RunSpec) -> tuple[dict[str, Any], Options]:
    """Return the options that a run gives its method, and all options with the defaults of the others."""
    method = load_method(spec.method)
    # JSON and TOML have lists only, options tuples only.
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in spec.options.items()}
    if "seed" in {field.name for field in dataclasses.fields(method.options_type)}:
        given.setdefault("seed", spec.seed)
    return given, build_options(method, given)


def _behind_data(dataset: DomainDataset) -> list[Any]:
    """Return the classes and functions whose code makes the images of a dataset."""
    held = (each if isinstance(each, tuple) else (each,) for each in vars(dataset).values())
    parts = [part for part in itertools.chain.from_iterable(held) if isinstance(part, DomainDataset)]
    corruptions = [each for steps in getattr(dataset, "functions", {}).values() for each in steps.values()]
    return [*type(dataset).__mro__, *corruptions, *itertools.chain.from_iterable(map(_behind_data, parts))]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def _open_data(source: str, options: str, preprocessing: Preprocessing | None = None) -> DomainDataset:
    try:
        return load_data(source, preprocessing=preprocessing, **json.loads(options))
    except TypeError as error:  # such as a number where a text belongs
        raise OptionError(f"data_options do not fit {source!r}: {error}.") from error


def _part(whole: DomainDataset, scenario: str, *choice: Any) -> DomainDataset:
    return streams.STREAM.load(scenario).part(whole, *choice)


def _make_stream(
    dataset: DomainDataset, scenario: str, settings: str, batch_size: int, seed: int
) -> tuple[Stream, streams.Summary]:
    stream = streams.make(scenario, dataset, batch_size=batch_size, seed=seed, **json.loads(settings))
    return stream, streams.summarize(stream, dataset)


def _open_model(
    name: str, weights: str | None, classes: int, normalization: str | None, card: str
) -> tuple[Classifier, str]:
    model = load(
        name, weights=weights, normalization=normalization, fallback_classes=classes, card=json.loads(card)
    )
    return model, weights_digest(model)


def _model_name(model: str) -> str:
    """Return the name of a model without the folder of its file."""
    return Path(model).stem if model.endswith(".safetensors") else public_name(model)
