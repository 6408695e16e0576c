"""What a run is called in tables: each of its settings as a field, in words.

Everything about a run but its seed is one of the ``FIELDS``.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.complete import what_is_missing
from findtta.bench.result import Result
from findtta.data.dataset import MAIN_CORRUPTIONS, split_domain
from findtta.errors import InputError
from findtta.registry import load_method, method_names
from findtta.streams import SCENARIOS

#: What can stand in rows or columns, and the fields that differ along with it.
AXES: dict[str, tuple[str, ...]] = {
    "method": ("method",),
    "stream": ("stream", "edition"),
    "model": ("model", "weights"),
    "data": ("data", "domains", "images", "identity"),
    "domains": ("domains", "images", "identity"),
    "images": ("images", "identity"),
    "batch-size": ("batch size",),
    "reset": ("reset",),
    "device": ("device",),
}


FIELDS = tuple(dict.fromkeys(field for fields in AXES.values() for field in fields))


def settings(results: Iterable[Result]) -> list[dict[str, str]]:
    """Return the fields of each run in words, as tables show them; if it failed early, those asked for."""
    names = Names()
    fields = [names.fields(result) if result.config else _asked_fields(result) for result in results]
    return [{field: field_text(field, value) for field, value in known.items()} for known in fields]


@dataclass(frozen=True)
class NamedRun:
    """A result with its fields, as keys that can be compared."""

    result: Result
    fields: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.result.config["seed"])

    @property
    def is_done(self) -> bool:
        return self.result.status == "done"

    @property
    def started(self) -> float:
        started = self.result.environment.get("started")
        return float(started) if isinstance(started, int | float) else 0.0

    def key(self, fields: Iterable[str]) -> tuple[Any, ...]:
        return tuple(self.fields[field] for field in fields)

    @property
    def contest(self) -> tuple[Any, ...]:
        """All that runs of other methods must share to compete with this one."""
        return self.key(field for field in FIELDS if field != "method")


class Names:
    """What runs are called; the registries are looked at once."""

    def __init__(self) -> None:
        self._methods = method_names()
        self._known_defaults: dict[str, Mapping[str, Any] | None] = {}

    def runs(self, results: Iterable[Result]) -> list[NamedRun]:
        """Return the results that can be placed in tables, with their fields."""
        runs = []
        for result in results:
            missing = what_is_missing(result)
            if missing:
                raise InputError(f"the result {result.digest!r} cannot be compared: {missing}.")
            if result.config:
                runs.append(NamedRun(result, self.fields(result)))
        editions = _editions(runs)
        return [
            NamedRun(run.result, {**run.fields, "edition": edition})
            for run, edition in zip(runs, editions, strict=True)
        ]

    def fields(self, result: Result) -> dict[str, Any]:
        """Return the fields of a run that was planned."""
        config = result.config
        data, stream, model = config["data"], config["stream"], config["model"]
        says_so = "(generated)" in data["name"] or not data["generated"]
        return {
            "method": _with_options(config["method"], self._unusual_options(result)),
            "stream": _with_settings(stream["scenario"], stream["settings"]),
            "edition": "",
            "model": model["name"],
            "weights": model["weights"],
            "data": data["name"] if says_so else f"{data['name']} (generated)",
            "domains": tuple(data["domains"]),
            "images": data["images"],
            "identity": data["identity"],
            "batch size": stream["batch_size"],
            "reset": config["reset"],
            "device": config["device"],
        }

    def order(self, fields: Sequence[str], key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return where a key comes: as the registries have it, numbers by size, else by the alphabet."""
        return tuple(self._order(field, value) for field, value in zip(fields, key, strict=True))

    def _order(self, field: str, value: Any) -> tuple[Any, ...]:
        if field == "method":
            return _place(value.partition(" (")[0], self._methods), value
        return (_place(value.partition(":")[0], list(SCENARIOS)), value) if field == "stream" else (value,)

    def _unusual_options(self, result: Result) -> dict[str, Any]:
        """Return the options that are not the method's defaults, without a seed that is just the run's."""
        asked = result.spec.get("options")
        asked = asked if isinstance(asked, Mapping) else {}
        defaults = self._defaults(result.config["method"])
        if defaults is None:  # a method of a package that is not installed here
            return dict(asked)
        return {
            name: value
            for name, value in _as_json_has_it(result.config["options"]).items()
            if (name != "seed" or "seed" in asked) and (name not in defaults or value != defaults[name])
        }

    def _defaults(self, method: str) -> Mapping[str, Any] | None:
        if method not in self._known_defaults:
            self._known_defaults[method] = _option_defaults(method) if method in self._methods else None
        return self._known_defaults[method]


def _option_defaults(method: str) -> Mapping[str, Any] | None:
    try:
        options = dataclasses.fields(load_method(method).options_type)
    except Exception:  # somebody else's broken package must not hide results
        return None
    return _as_json_has_it({field.name: field.default for field in options})


def _as_json_has_it(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are after a result was stored, where a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def _asked_fields(result: Result) -> dict[str, Any]:
    """Return what a run that failed before it was planned had been asked to be."""
    spec, options = result.spec, result.spec.get("options")
    fields = {
        "method": _with_options(str(spec.get("method")), options if isinstance(options, Mapping) else {}),
        "stream": spec.get("stream"),
        "model": spec.get("model"),
        "data": spec.get("data"),
        "batch size": spec.get("batch_size"),
        "reset": spec.get("reset"),
        "device": spec.get("device"),
    }
    return {field: value for field, value in fields.items() if value is not None}


def _editions(runs: Sequence[NamedRun]) -> list[str]:
    """Tell apart streams that have the same name, settings and seed, but not the same samples.

    Releases may differ in the streams they make, in spite of equal settings. Where nothing differs, which is
    the rule, the edition is empty.
    """
    held = [field for field in FIELDS if field != "method"]
    digests: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    by_release: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    torn: set[tuple[Any, ...]] = set()
    torn_within_release: set[tuple[Any, ...]] = set()
    for run in runs:
        column, digest, release = run.key(held), run.result.config["stream"]["digest"], _release(run)
        digests[(*column, run.seed)].add(digest)
        by_release[(*column, run.seed, release)].add(digest)
        if len(digests[(*column, run.seed)]) > 1:
            torn.add(column)
        if len(by_release[(*column, run.seed, release)]) > 1:
            torn_within_release.add(column)
    editions = []
    for run in runs:
        column = run.key(held)
        if column in torn_within_release:
            editions.append(f"digest {run.result.config['stream']['digest'][:8]}")
        else:
            editions.append(f"findtta {_release(run)}" if column in torn else "")
    return editions


def _release(run: NamedRun) -> str:
    return str(run.result.config["versions"].get("findtta", "unknown"))


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return f"{method} ({', '.join(_assignments(options))})" if options else method


def _with_settings(scenario: str, settings: Mapping[str, Any]) -> str:
    kind = SCENARIOS.get(scenario)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)} if kind else {}
    unusual = {name: value for name, value in settings.items() if name not in defaults or value != defaults[name]}
    return f"{scenario}:{','.join(_assignments(unusual))}" if unusual else scenario


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(values.items())
    ]


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)


def field_text(field: str, value: Any) -> str:
    """Return a value of a field in words."""
    if field == "domains":
        return _domains_text(value)
    if field == "images":
        return f"{value:,}"
    return str(value)[:8] if field in ("weights", "identity") else str(value)


def _domains_text(domains: Sequence[str]) -> str:
    """Return which domains there are: the usual fifteen by their number, others by name."""
    kinds: dict[int | None, list[str]] = defaultdict(list)
    for domain in domains:
        kind, severity = split_domain(domain)
        kinds[severity].append(kind)
    by_kinds: dict[tuple[str, ...], list[int | None]] = defaultdict(list)
    for severity, names in kinds.items():
        by_kinds[tuple(names)].append(severity)
    return " and ".join(_kinds_text(names, severities) for names, severities in by_kinds.items())


def _kinds_text(names: tuple[str, ...], severities: Sequence[int | None]) -> str:
    text = f"the {len(names)} corruptions" if names == MAIN_CORRUPTIONS else ", ".join(names)
    levels = sorted(level for level in severities if level is not None)
    if not levels:
        return text
    return f"{text} at {'severity' if len(levels) == 1 else 'severities'} {number_ranges(levels)}"


def number_ranges(values: Sequence[int]) -> str:
    """Write whole numbers in order, a run of three or more as first-last."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values))
