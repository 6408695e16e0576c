"""A grid of runs: methods by streams by datasets by models by seeds, from a TOML file or from flags.

A grid file has settings that all runs share at its top, and lists in its table ``[grid]``::

    about = "what this grid is for"
    images = 200

    [grid]
    streams = ["crossmix", "wild:delta=0.01"]
    methods = ["tbn", { method = "find", options = { alpha = 0.9 } }]
    models = [{ model = "resnet20", weights = "resnet20.pt", data = "cifar10-c" }]
    seeds = [0, 1, 2]

An entry of a list is a value, or a table of settings that belong to it (so that a model can bring its data).
Paths are relative to the file.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from findtta import streams
from findtta._io import read_toml
from findtta.bench.plan import SETTINGS, RunSpec, method_options
from findtta.data.open import SHAPES, split_sources
from findtta.data.published import PUBLISHED
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError, close_matches
from findtta.options import MODEL_NAMES, Count, Options, Seed, option, parse_assignments, require_known
from findtta.plugins import located
from findtta.registry import METHOD

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Axes(Options):
    """The lists of a grid, each with the setting that it varies.

    They are ordered from the outermost loop to the innermost, so that runs which share data, model and stream
    follow each other.
    """

    data: tuple[str, ...] = option((), "datasets", metavar="NAME|PATH,...", setting="data")
    models: tuple[str, ...] = option((), f"models, each {MODEL_NAMES}", metavar="NAME,...", setting="model")
    streams: tuple[str, ...] = option(
        (), "streams, such as crossmix,wild:delta=0.01", metavar="NAME,...", setting="stream"
    )
    batch_sizes: tuple[Count, ...] = option(
        (), "samples per batch", metavar="N,...", parse=int, setting="batch_size"
    )
    seeds: tuple[Seed, ...] = option(
        (), "seeds of the streams, and of methods that draw at random", metavar="N,...", parse=int, setting="seed"
    )
    methods: tuple[str, ...] = option(
        (), "methods, such as find:alpha=0.9,tbn", metavar="NAME,...", setting="method"
    )


#: The setting that each list varies.
AXES: Mapping[str, str] = {field.name: field.metadata["setting"] for field in dataclasses.fields(Axes)}
_MERGED = ("options", "data_options")  # given in two places, they are combined


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Runs that differ along some axes and share all else."""

    settings: Settings = field(default_factory=dict)  # shared by all runs
    # For each name in ``AXES`` that the grid has, the settings of each entry.
    axes: Mapping[str, Sequence[Settings]] = field(default_factory=dict)
    about: str = ""  # what the grid is for

    def changed(self, axes: Mapping[str, Sequence[Any]], settings: Settings) -> Grid:
        """Return the grid with other lists in place of its own, and with settings that override all others.

        An entry that the grid has as well keeps the settings that it has there.
        """
        lists = {name: self._known(name, _entries(name, values)) for name, values in axes.items()}
        return dataclasses.replace(self, axes={**self.axes, **lists}).mapped(lambda own: _merge(own, settings))

    def _known(self, name: str, entries: Sequence[Settings]) -> list[Settings]:
        """Return entries with the settings that those of the same name and options have in this grid."""

        def same(own: Settings, entry: Settings) -> bool:
            return all(own.get(setting) == entry.get(setting) for setting in (AXES[name], "options"))

        own = self.axes.get(name, ())
        return [next((each for each in own if same(each, entry)), entry) for entry in entries]

    def mapped(self, change: Callable[[Settings], Settings]) -> Grid:
        """Return the grid with changed settings: those that all runs share, and those of each entry."""
        axes = {name: [change(entry) for entry in entries] for name, entries in self.axes.items()}
        return dataclasses.replace(self, settings=change(self.settings), axes=axes)


def expand(grid: Grid) -> list[RunSpec]:
    """Return the runs of a grid, each once, always in the same order.

    Names and options of methods and streams are checked; data and weights are not opened.
    """
    specs: list[RunSpec] = []
    for combination in itertools.product(*(grid.axes[name] for name in AXES if name in grid.axes)):
        spec = RunSpec.from_dict(functools.reduce(_merge, combination, grid.settings))
        if spec not in specs:
            streams.parse(spec.stream)
            method_options(spec)
            specs.append(spec)
    return specs


def read(path: str | Path) -> Grid:
    """Read a grid from a TOML file."""
    path = Path(path)
    document = read_toml(path, "grid")
    try:
        lists, about = document.pop("grid", {}), str(document.pop("about", ""))
        _check_names("at the top", document, (*SETTINGS, "grid", "about"))
        if not isinstance(lists, dict):
            raise OptionError("[grid] must be a table of lists.")
        _check_names("in [grid]", lists, tuple(AXES))
        axes = {name: _entries(name, values) for name, values in lists.items()}
        grid = Grid(settings=document, axes=axes, about=about)
        # Paths of a file are relative to it.
        grid = grid.mapped(lambda own: {name: resolve(name, value, path.parent) for name, value in own.items()})
        expand(grid)
    except FindTTAError as error:
        raise type(error)(f"grid: {path}: {error}") from error
    return grid


def find(name: str) -> Grid:
    """Return the grid in a file, or the preset of this name."""
    path = Path(name).expanduser()
    if path.is_file():
        return read(path)
    known = presets()
    if name not in known and (path.suffix or len(path.parts) > 1):
        raise InputError(f"grid: there is no file {name!r}. Give a TOML file, or a preset: {', '.join(known)}.")
    require_known("grid, unless it is a TOML file,", name, known)
    return known[name]


def presets() -> dict[str, Grid]:
    """Return the grids that come with the package, by name."""
    return {path.stem: read(path) for path in sorted(Path(__file__).with_name("presets").glob("*.toml"))}


def _check_names(where: str, given: Settings, known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            hint = close_matches(name, known)
            if name in AXES:
                hint = " It is a list of [grid]."
            elif name in SETTINGS:
                hint = " It is a setting for the top of the file."
            raise UnknownNameError(f"{where} there is no {name!r}.{hint} Known are {', '.join(known)}.")


def _entries(name: str, values: Any) -> list[Settings]:
    """Return the settings of each entry of a list of the grid."""
    if not isinstance(values, list | tuple) or not values:
        raise OptionError(f"{name} must be a list with at least one entry, got {values!r}.")
    return [_entry(name, value) for value in values]


def _entry(name: str, value: Any) -> Settings:
    setting = AXES[name]
    settings: Settings = value if isinstance(value, Mapping) else {setting: value}
    _check_names(f"in an entry of {name}", settings, SETTINGS)
    if setting not in settings:
        raise OptionError(f"an entry of {name} must have a {setting!r}, got {settings!r}.")
    method = settings.get("method")
    if setting == "method" and isinstance(method, str) and ":" in method:
        # Options after a colon, as streams have their settings.
        method, options = METHOD.split(method)
        given = parse_assignments(f"options of {method!r}", options)
        settings = _merge(settings, {"method": method, "options": given})
    return settings


def _merge(settings: Settings, more: Settings) -> Settings:
    merged = {**settings, **more}
    for name in _MERGED:
        if all(isinstance(each.get(name), Mapping) for each in (settings, more)):
            merged[name] = {**settings[name], **more[name]}
    return merged


def resolve(setting: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting; a path becomes one below the folder, a name stays a name."""
    if setting == "domains" and isinstance(value, list):
        return [resolve(setting, each, folder) for each in value]
    if setting == "data" and isinstance(value, str) and len(parts := split_sources(value)) > 1:
        return "+".join(resolve(setting, part, folder) for part in parts)
    if setting == "data" and isinstance(value, str) and ".py:" not in value and value not in (SHAPES, *PUBLISHED):
        path = folder / Path(value).expanduser()
        return str(path) if path.exists() else value  # whoever opens it says what is wrong with it
    return located(setting, value, folder)
