"""A grid of runs: methods by streams by datasets by models by seeds, from a TOML file or from flags.

A grid file has settings that all runs share at its top, and lists in its table ``[grid]``::

    about = "what this grid is for"
    images = 200

    [grid]
    streams = ["crossmix", "wild:delta=0.01"]
    methods = ["tbn", { method = "find", options = { alpha = 0.9 } }]
    models = [{ model = "resnet20", weights = "resnet20.pt", data = "cifar10-c" }]
    seeds = [0, 1, 2]

An entry of a list is a value, or a table of settings that go with it (so that a model can bring its data).
Paths are relative to the file.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from findtta import streams
from findtta.bench.plan import method_options
from findtta.bench.spec import RunSpec
from findtta.data.open import SHAPES
from findtta.data.published import PUBLISHED
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError, close_matches
from findtta.options import parse_assignments

Settings = Mapping[str, Any]

#: The setting that each list gives, from the outermost loop to the innermost: runs that share data, model and
#: stream follow each other.
AXES: Mapping[str, str] = {
    "data": "data",
    "models": "model",
    "streams": "stream",
    "batch_sizes": "batch_size",
    "seeds": "seed",
    "methods": "method",
}
ABOUT = "about"
_SETTINGS = tuple(setting.name for setting in dataclasses.fields(RunSpec))
_MERGED = ("options", "data_options")  # given in two places, they add up


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Runs that differ along some axes and share all else.

    Attributes:
        settings: Settings that all runs share.
        axes: For each name in ``AXES`` that the grid has, the settings of every entry.
        overrides: Settings that win over all others.
        about: What the grid is for.
    """

    settings: Settings = field(default_factory=dict)
    axes: Mapping[str, Sequence[Settings]] = field(default_factory=dict)
    overrides: Settings = field(default_factory=dict)
    about: str = ""

    def changed(self, axes: Mapping[str, Sequence[Any]], settings: Settings) -> Grid:
        """Return the grid with other lists in the place of its own, and with settings that win over all others.

        Args:
            axes: Entries for names in ``AXES``, as a grid file has them.
            settings: Settings of a run.

        Returns:
            The changed grid.
        """
        entries = {name: _entries(name, values) for name, values in axes.items()}
        return dataclasses.replace(self, axes={**self.axes, **entries}, overrides=_merge(self.overrides, settings))


def expand(grid: Grid) -> list[RunSpec]:
    """Return the runs of a grid, each once, always in the same order.

    Names and options of methods and streams are checked; what needs data or weights is not looked at.
    """
    axes = [grid.axes[name] for name in AXES if name in grid.axes]
    specs: dict[str, RunSpec] = {}
    for combination in itertools.product(*axes):
        settings = grid.settings
        for part in (*combination, grid.overrides):
            settings = _merge(settings, part)
        spec = RunSpec.from_dict(settings)
        specs.setdefault(json.dumps(spec.to_dict(), sort_keys=True), spec)
    for spec in specs.values():
        streams.parse(spec.stream)
        method_options(spec)
    return list(specs.values())


def read(path: str | Path) -> Grid:
    """Read a grid file.

    Args:
        path: A TOML file.

    Returns:
        The grid.
    """
    path = Path(path)
    return _read(path, str(path), path.parent)


def find(name: str) -> Grid:
    """Return the grid in a file, or the preset of this name."""
    path = Path(name).expanduser()
    if path.is_file():
        return read(path)
    known = _preset_files()
    if name in known:
        return _read(known[name], f"preset {name!r}", None)
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"grid: there is no file {name!r}. Give a TOML file, or a preset: {', '.join(known)}.")
    raise UnknownNameError(
        f"grid must be a TOML file or a preset ({', '.join(known)}), got {name!r}.{close_matches(name, known)}"
    )


def presets() -> dict[str, Grid]:
    """Return the grids that come with the package, by name."""
    return {name: _read(file, f"preset {name!r}", None) for name, file in _preset_files().items()}


def _preset_files() -> dict[str, Traversable]:
    folder = importlib.resources.files("findtta.bench") / "presets"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def _read(file: Traversable, where: str, folder: Path | None) -> Grid:
    try:
        document = tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise InputError(f"grid: {where} cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"grid: {where} is no text in UTF-8, so no TOML.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"grid: {where} is no valid TOML: {error}.") from error
    try:
        grid = _from_document(document)
        expand(grid)
    except FindTTAError as error:
        raise type(error)(f"grid: {where}: {error}") from error
    return grid if folder is None else _relative_to(folder, grid)


def _from_document(document: dict[str, Any]) -> Grid:
    settings = {name: value for name, value in document.items() if name not in ("grid", ABOUT)}
    _check_names("at the top", settings, (*_SETTINGS, "grid", ABOUT))
    lists = document.get("grid", {})
    if not isinstance(lists, dict):
        raise OptionError("[grid] must be a table of lists.")
    _check_names("in [grid]", lists, tuple(AXES))
    axes = {name: _entries(name, values) for name, values in lists.items()}
    return Grid(settings=settings, axes=axes, about=str(document.get(ABOUT, "")))


def _check_names(where: str, given: Settings, known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            elsewhere = ""
            if name in AXES:
                elsewhere = " It is a list of [grid]."
            elif name in _SETTINGS:
                elsewhere = " It is a setting for the top of the file."
            raise UnknownNameError(
                f"{where} there is no {name!r}.{elsewhere or close_matches(name, known)} "
                f"Known are {', '.join(known)}."
            )


def _entries(name: str, values: Any) -> list[Settings]:
    """Return the settings of every entry of a list of the grid."""
    if not isinstance(values, list | tuple) or not values:
        raise OptionError(f"{name} must be a list with at least one entry, got {values!r}.")
    return [_entry(name, value) for value in values]


def _entry(name: str, value: Any) -> Settings:
    setting = AXES[name]
    if isinstance(value, Mapping):
        _check_names(f"in an entry of {name}", value, _SETTINGS)
        if setting not in value:
            raise OptionError(f"an entry of {name} must say its {setting!r}, got {dict(value)!r}.")
        settings = dict(value)
    else:
        settings = {setting: value}
    if setting == "method" and isinstance(settings["method"], str):
        # Options after a colon, as streams have their settings.
        method, colon, rest = settings["method"].partition(":")
        if colon:
            given = parse_assignments(f"options of {method!r}", rest.split(","))
            settings = _merge(settings, {"method": method, "options": given})
    return settings


def _merge(settings: Settings, more: Settings) -> dict[str, Any]:
    merged = {**settings, **more}
    for name in _MERGED:
        both = settings.get(name), more.get(name)
        if isinstance(both[0], Mapping) and isinstance(both[1], Mapping):
            merged[name] = {**both[0], **both[1]}
    return merged


def _relative_to(folder: Path, grid: Grid) -> Grid:
    def resolved(settings: Settings) -> dict[str, Any]:
        return {name: _RESOLVERS.get(name, _unchanged)(value, folder) for name, value in settings.items()}

    axes = {name: [resolved(entry) for entry in entries] for name, entries in grid.axes.items()}
    return dataclasses.replace(grid, settings=resolved(grid.settings), axes=axes)


def _unchanged(value: Any, folder: Path) -> Any:
    return value


def _resolve_weights(value: Any, folder: Path) -> Any:
    return str(folder / Path(value).expanduser())


def _resolve_model(value: Any, folder: Path) -> Any:
    place, colon, name = value.rpartition(":")
    if value.endswith(".safetensors"):
        return _resolve_weights(value, folder)
    return f"{_resolve_weights(place, folder)}{colon}{name}" if place.endswith(".py") else value


def _resolve_data(value: Any, folder: Path) -> Any:
    # A name stays a name; of what is neither known nor there, the reader says what is wrong.
    is_name = value == SHAPES or value in PUBLISHED
    path = _resolve_weights(value, folder)
    return path if not is_name and Path(path).exists() else value


_RESOLVERS: Mapping[str, Callable[[Any, Path], Any]] = {
    "weights": _resolve_weights,
    "model": _resolve_model,
    "data": _resolve_data,
}
