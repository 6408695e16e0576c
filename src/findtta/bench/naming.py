"""What a run is called in tables and filters: each of its settings as a field, in words.

Everything about a run but its seed is one of the ``FIELDS``.
"""

import dataclasses
import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.result import FLAT_GROUPS, Result
from findtta.data.dataset import MAIN_CORRUPTIONS, split_domain
from findtta.plugins import is_reference, public_values
from findtta.registry import BUILT_IN, load_method
from findtta.streams import SCENARIOS, STREAM

#: What can be the rows or columns of a table, and the fields that differ along with it.
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
#: How fields are said in titles; the others with their names.
_PHRASES = {"edition": "{}", "domains": "{}", "images": "{} images", "device": "on {}"}
FIELDS = tuple(dict.fromkeys(field for fields in AXES.values() for field in fields))


@dataclass(frozen=True)
class NamedRun:
    """A result with its settings as values that can be compared; if it was never planned, those asked for."""

    result: Result
    fields: dict[str, Any]

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """The settings in words."""
        return {field: field_text(field, value) for field, value in self.fields.items()}

    def key(self, fields: Iterable[str]) -> tuple[Any, ...]:
        """Return the values of some fields."""
        return tuple(self.fields[field] for field in fields)

    @property
    def contest(self) -> tuple[Any, ...]:
        """All that runs of other methods must share with this one to be compared with it."""
        return self.key(field for field in FIELDS if field != "method")

    def filter_values(self, name: str) -> set[Any]:
        """Return the values by which a filter finds this run, such as a method with and without its options."""
        spec, word = self.result.spec, self.words.get(name, "")
        values = {
            "method": (word, word.partition(" (")[0]),
            "stream": (word, STREAM.split(word)[0]),
            "data": (word, word.removesuffix(" (generated)"), spec.get("data")),
            "model": (word, spec.get("model")),
            "seed": (self.result.seed,),
            "batch_size": (self.fields.get("batch size"),),
            "status": (self.result.status,),
        }[name]
        return {value for value in values if isinstance(value, str | int)}


def named_runs(results: Iterable[Result]) -> list[NamedRun]:
    """Return results with their settings, in the order in which the runs began."""
    results = sorted(results, key=lambda result: (result.started, result.digest))
    runs = [NamedRun(result, _fields(result)) for result in results]
    _name_editions([run for run in runs if run.result.config])
    return runs


def ordered(fields: Sequence[str], keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return distinct keys in the order of tables: methods and streams as registered, all else by value."""
    places = {"method": list(BUILT_IN), "stream": list(SCENARIOS)}

    def place(field: str, value: Any) -> tuple[Any, ...]:
        if field not in places:
            return (value,)
        name = STREAM.split(value.partition(" (")[0])[0]
        return places[field].index(name) if name in places[field] else len(places[field]), value

    return sorted(set(keys), key=lambda key: tuple(map(place, fields, key)))


def told_apart(titles: Iterable[str], words: Sequence[Mapping[str, str]], fields: Iterable[str]) -> list[str]:
    """Return titles with those fields, in words, that tell apart the ones that are alike."""
    told = list(titles)
    for field in fields:
        values: dict[str, set[str]] = defaultdict(set)
        for title, each in zip(told, words, strict=True):
            values[title].add(each.get(field, ""))
        phrase = _PHRASES.get(field, f"{field} {{}}")
        told = [
            f"{title}, {phrase.format(each[field])}" if len(values[title]) > 1 and each.get(field) else title
            for title, each in zip(told, words, strict=True)
        ]
    return told


def _fields(result: Result) -> dict[str, Any]:
    """Return the settings of a run, as far as they are known: one that was not planned has those asked for."""
    known = public_values({name: field.read(result) for name, field in FLAT_GROUPS["settings"].items()})
    scenario, data = SCENARIOS.get(known["stream"]), known["data"]
    usual = {field.name: field.default for field in dataclasses.fields(scenario)} if scenario else {}
    settings = _assignments(_unusual(known["stream_settings"] or {}, usual))
    fields = {
        "method": method_text(known["method"], _unusual_options(result)),
        "stream": f"{known['stream']}:{','.join(settings)}" if settings else known["stream"],
        "edition": "",
        "model": known["model"],
        "weights": known["weights"],
        "data": f"{data} (generated)" if known["generated"] and "(generated)" not in data else data,
        "domains": None if known["domains"] is None else tuple(known["domains"]),
        "images": known["images"],
        "identity": known["data_identity"],
        "batch size": known["batch_size"],
        "reset": known["reset"],
        "device": known["device"],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _unusual_options(result: Result) -> dict[str, Any]:
    """Return the options that are not the method's defaults, without a seed that is just the run's."""
    asked = result.spec.get("options", {})
    defaults = _method_defaults(result.config.get("method", ""))
    if defaults is None:
        return public_values(asked)
    options = {name: value for name, value in result.config["options"].items() if name != "seed" or name in asked}
    return _unusual(_as_json(options), defaults)


@functools.cache
def _method_defaults(method: str) -> Mapping[str, Any] | None:
    """Return the default options of a method, or None if its package is not installed here or broken.

    A file is not looked for: to show a result must not run code that happens to have the same name.
    """
    if is_reference(method):
        return None
    try:
        fields = dataclasses.fields(load_method(method).options_type)
    except Exception:
        return None
    return _as_json({field.name: field.default for field in fields})


def _unusual(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are in a stored result, where a tuple is a list."""
    return dict(json.loads(json.dumps(dict(values), default=str)))


def method_text(method: str, options: Mapping[str, Any]) -> str:
    """Return what tables call a method with these options."""
    return f"{method} ({', '.join(_assignments(options))})" if options else method


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(values.items())
    ]


def _name_editions(runs: Sequence[NamedRun]) -> None:
    """Tell apart streams of the same name, settings and seed, but not the same samples.

    Different versions of findtta may make different streams from equal settings. Usually nothing differs, and the
    edition stays empty.
    """
    found: dict[Any, dict[int, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    streams = {}
    for run in runs:
        config = run.result.config
        streams[run.result.digest] = config["versions"].get("findtta", "unknown"), config["stream"]["digest"]
        found[run.contest][run.result.seed].add(streams[run.result.digest])
    for run in runs:
        by_seed = found[run.contest].values()
        if any(len({digest for _, digest in seen}) > 1 for seen in by_seed):
            version, digest = streams[run.result.digest]
            unclear = any(len(seen) > len({version for version, _ in seen}) for seen in by_seed)
            run.fields["edition"] = f"digest {digest[:8]}" if unclear else f"findtta {version}"


def field_text(field: str, value: Any) -> str:
    """Return a value of a field in words."""
    if field == "domains":
        return _domains_text(value)
    if field == "images":
        return f"{value:,}"
    return str(value)[:8] if field in ("weights", "identity") else str(value)


def _domains_text(domains: Sequence[str]) -> str:
    """Return the domains in words: the fifteen main corruptions by their number, others by name."""
    kinds: dict[int | None, list[str]] = defaultdict(list)
    for domain in domains:
        kind, severity = split_domain(domain)
        kinds[severity].append(kind)
    severities: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for severity, names in kinds.items():
        severities[tuple(names)] += [] if severity is None else [severity]
    texts = []
    for group, levels in severities.items():
        text = f"the {len(group)} corruptions" if group == MAIN_CORRUPTIONS else ", ".join(group)
        noun = "severity" if len(levels) == 1 else "severities"
        texts.append(f"{text} at {noun} {number_ranges(sorted(levels))}" if levels else text)
    return " and ".join(texts)


def number_ranges(values: Sequence[int]) -> str:
    """Return whole numbers in words, three or more consecutive ones as first-last."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values))
