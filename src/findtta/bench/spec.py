"""What a run is asked to be: one method, one model, one stream of one dataset."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from findtta.errors import OptionError, UnknownNameError, close_matches

Reset = Literal["never", "domain"]

_TEXTS = ("method", "model", "weights", "normalization", "data", "stream", "reset", "device")
_NUMBERS = ("images", "batch_size", "seed")
_MAPPINGS = ("options", "data_options")
_MAY_BE_NONE = ("weights", "normalization", "domains", "severity", "images")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a run is asked to be; everything in it can be written as JSON.

    Attributes:
        method: The name of a method.
        options: Its options.
        model: A shipped model, an architecture together with ``weights``, ``timm:NAME``, ``module:CALLABLE`` or
            ``file.py:CALLABLE``.
        weights: The state dict of an architecture.
        normalization: Of the input, where the weights have no card and the usual one is wrong.
        data: ``"shapes"``, the name of a fetched dataset, or a path.
        data_options: Options of its reader, such as ``{"count": 2000}`` for shapes.
        domains: Domains of the stream; by default those the scenario is usually made of.
        severity: The severity, or severities, of domains that do not say theirs; by default the scenario's.
        images: At most so many images per domain.
        stream: A scenario, with its settings after a colon: ``"wild:delta=0.01"``.
        batch_size: Samples per batch.
        seed: The seed of the stream, and of methods that draw at random.
        reset: ``"domain"`` makes a stateful method forget everything whenever the domain of whole batches
            changes, which takes an oracle; ``"never"`` is how a deployed model lives.
        device: Where the model runs.
    """

    method: str = "find"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "shapes-resnet26"
    weights: str | None = None
    normalization: str | None = None
    data: str = "shapes"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    domains: tuple[str, ...] | None = None
    severity: int | tuple[int, ...] | None = None
    images: int | None = None
    stream: str = "crossmix"
    batch_size: int = 64
    seed: int = 0
    reset: Reset = "never"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("domains", "severity"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("model", "weights", "data"):
            if isinstance(getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        for field_ in dataclasses.fields(self):
            _check(field_.name, getattr(self, field_.name))

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain values that JSON can write."""
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the spec with these fields; the others keep their defaults."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise UnknownNameError(
                    f"a run has no setting {name!r}.{close_matches(name, known)} "
                    f"Its settings are {', '.join(known)}."
                )
        return cls(**fields)


def _check(name: str, value: Any) -> None:
    """Raise unless the value is of the kind that the setting takes; what it means is checked by who uses it."""
    if value is None and name in _MAY_BE_NONE:
        return
    if name in _TEXTS:
        expected, fits = "a text", isinstance(value, str)
    elif name in _NUMBERS:
        expected, fits = "a whole number", _is_whole(value)
    elif name in _MAPPINGS:
        expected, fits = "names with values", isinstance(value, Mapping)
    elif name == "domains":
        expected = "a list of names"
        fits = isinstance(value, tuple) and all(isinstance(domain, str) for domain in value)
    else:
        expected = "a whole number or a list of them"
        fits = all(_is_whole(level) for level in value) if isinstance(value, tuple) else _is_whole(value)
    if not fits:
        raise OptionError(f"{name} must be {expected}, got {value!r}.")
    if name == "reset" and value not in get_args(Reset):
        raise OptionError(f"reset must be 'never' or 'domain', got {value!r}.")
    if name == "images" and value < 1:
        raise OptionError(f"images must be at least 1 per domain, got {value}.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
