"""What a run gave: a JSON document, whether it is complete, and a flat row of it for other tools."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from findtta._io import read_toml
from findtta.errors import InputError
from findtta.intervals import Scores

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave; everything in it is plain values."""

    digest: str  # the identity of the run
    status: Literal["done", "failed"]
    spec: Mapping[str, Any]  # what was asked for
    config: Mapping[str, Any] = field(default_factory=dict)  # all that decided it; empty if it was never planned
    # Samples, accuracy, error, mean_domain_accuracy, ece (per cent), nll, brier, not_finite.
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_domain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # samples, accuracy of each
    per_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # samples, accuracy of each
    per_round: list[float] = field(default_factory=list)  # accuracy of each pass over the data
    samples: Mapping[str, str] = field(
        default_factory=dict
    )  # which were classified correctly, as ``Scores`` encode it
    # The accuracy curve: batch, accuracy so far, and as window the accuracy since the last point.
    running: Mapping[str, list[float]] = field(default_factory=dict)
    # Name, kind, channels, groups (mean and standard deviation), score and split of each adapted layer.
    layers: Sequence[Mapping[str, Any]] = field(default_factory=list)
    collapse: Mapping[str, Any] | None = None  # when and how the predictions collapsed
    # Latency per batch (ms), images per second, peak memory (MB), forward and backward passes.
    cost: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, machine, time: decide nothing
    error: Mapping[str, str] | None = None  # type and message of the error of a run that failed

    @property
    def accuracy(self) -> float:
        """The accuracy in per cent."""
        return self.metrics["accuracy"]

    @functools.cached_property
    def scores(self) -> Scores:
        """Which samples were classified correctly, and the images they show."""
        return Scores.decode(self.samples)

    @property
    def is_done(self) -> bool:
        """Whether the run did not fail."""
        return self.status == "done"

    @property
    def seed(self) -> Any:
        """The seed, as planned or else as asked for."""
        return self.config.get("seed", self.spec.get("seed"))

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970, or 0 if that is not known."""
        return float(self.environment.get("started") or 0)

    @property
    def error_text(self) -> str:
        """The error in words; empty if there is none."""
        return f"{self.error.get('type')}: {self.error.get('message')}" if self.error else ""

    def to_json(self) -> str:
        """Return the result as a JSON document."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the result in a JSON document; ``InputError`` says what is missing or wrong in it."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not the result of a run: {error}") from error
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Return the result in a JSON document that has been read."""
        try:
            fields = dict(document)
            if (written_as := fields.pop("format", None)) != FORMAT:
                raise TypeError(f"format must be {FORMAT}, got {written_as!r}; has another version written it?")
            result = cls(**fields)
        except (ValueError, TypeError) as error:
            raise InputError(f"not the result of a run: {error}") from error
        if result.status not in ("done", "failed"):
            raise InputError(f"not the result of a run: status must be 'done' or 'failed', got {result.status!r}.")
        empty = cls(digest="", status="failed", spec={})
        for kind in (kind for group in _FIELDS.values() for kind in group.values()):
            part, *path = kind.path.split(".")
            value = getattr(result, part)
            # A run that failed lacks most parts; one that is done has all but an error and perhaps a collapse.
            if value != getattr(empty, part) or (result.is_done and value is not None):
                kind.check(value, part, path)
            if result.spec.get(kind.asked) is not None:
                kind.check(result.spec[kind.asked], f"spec.{kind.asked}")
        if result.is_done:
            try:
                found = len(result.scores.values)
            except ValueError as error:
                raise InputError(f"not the result of a run: {error}") from error
            if found != result.metrics["samples"]:
                raise InputError(
                    f"not the result of a run: samples must be {result.metrics['samples']} of them, got {found}."
                )
        return result


_TYPES: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (float | int, "a number"),
    "bool": (bool, "true or false"),
    "list": (list, "a list"),
    "dict": (dict, "a table of names with values"),
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value that results have; the file ``result.toml`` lists them, and says what the attributes mean."""

    path: str
    type: str
    optional: bool = False
    asked: str = ""
    title: str
    unit: str = ""
    decimals: int = 2
    value: str = ""
    label: str = ""
    higher_is_better: bool = False
    depends_on_machine: bool = False

    @property
    def caption(self) -> str:
        """The title with the unit."""
        return f"{self.title} in {self.unit}" if self.unit else self.title

    def shown(self, value: Any) -> Any:
        """Return a value of it for a table: numbers that are not whole with their decimals and unit."""
        return f"{value:.{self.decimals}f} {self.unit}".rstrip() if isinstance(value, float) else value

    def read(self, result: Result) -> Any:
        """Return its value in a result, or None if it is not there."""
        first, *path = self.path.split(".")
        value = getattr(result, first)
        for name in path:
            value = (value or {}).get(name)
        return result.spec.get(self.asked) if value is None and not result.config else value

    def check(self, value: Any, where: str, path: Sequence[str] = ()) -> None:
        """Raise ``InputError`` unless a part of a result has this value, of its type, at the end of a path."""
        name, *rest = path or [""]
        kind, words = _TYPES["list" if name == "[]" else "dict" if name else self.type]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"not the result of a run: {where} must be {words}, got {value!r:.100}.")
        if not name:
            return
        parts = dict(enumerate(value)) if name == "[]" else value
        for part in parts if name in ("[]", "*") else [name]:
            if parts.get(part) is not None:
                self.check(parts[part], f"{where}.{part}", rest)
            elif not self.optional:
                raise InputError(f"not the result of a run: {where}.{part} is missing.")


_FIELDS = {
    group: {name: Field(**{"title": name.replace("_", " "), **about}) for name, about in fields.items()}
    for group, fields in read_toml(Path(__file__).with_suffix(".toml")).items()
}
#: The columns of :func:`flat` in groups.
FLAT_GROUPS = {group: fields for group, fields in _FIELDS.items() if group != "parts"}
#: What tables of runs can show.
VALUES = {field.value: field for field in FLAT_GROUPS["measurements"].values() if field.value}


def flat(result: Result) -> dict[str, Any]:
    """Return a result as a flat row, with a value or None for each column of ``FLAT_GROUPS``.

    Options and settings are JSON texts, the time of the start is ISO 8601 in UTC.
    """
    values = {name: field.read(result) for group in FLAT_GROUPS.values() for name, field in group.items()}
    row = {n: json.dumps(v, sort_keys=True) if isinstance(v, dict | list) else v for n, v in values.items()}
    return row | {"started": datetime.fromtimestamp(result.started, UTC).isoformat(timespec="seconds")}


#: The type of each of these columns; any value may be None.
FLAT_COLUMNS: dict[str, type] = {
    name: {"int": int, "float": float, "bool": bool}.get(field.type, str)
    for group in FLAT_GROUPS.values()
    for name, field in group.items()
} | {"started": str}
