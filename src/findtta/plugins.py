"""The one way from names to methods, streams, corruptions, partitioners and datasets, and to models of users.

A name is a built-in one, that of an entry point of another package, or ``file.py:NAME`` or ``module:NAME``. A file
is relative to the working directory.
"""

import base64
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from findtta.errors import MissingExtraError, OptionError, UnknownNameError, close_matches, few, first_line

_REFERENCE = re.compile(r"(.+\.py|[^\W\d][\w.]*):[^\W\d]\w*(\+[\w-]+)?")  # a method may be followed by another
_OPTIONS = re.compile(r":(?=\s*[\w-]+\s*=)")  # where they begin, as in "mine.py:Mine:beta=0.3"
_FILE = re.compile(r"[^=]*?\.py(?=:)")

_NAMED = ("method", "stream", "model", "data", "domains", "partitioner")  # settings that may name file.py:NAME

#: As if this module were a package: the modules of users' files are below it, see ``_load_file``.
__path__: list[str] = []


def is_reference(name: str) -> bool:
    """Tell whether a name is ``file.py:NAME`` or ``module:NAME``."""
    return bool(_REFERENCE.fullmatch(name))


def public_name(name: str) -> str:
    """Return a name without the folder of its file, for what is stored or shown to others."""
    file = _FILE.match(name)
    return Path(file.group()).name + name[file.end() :] if file else name


def public_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose values, where they are names, are public ones."""
    return {name: public_name(value) if isinstance(value, str) else value for name, value in values.items()}


def below(name: str, folder: Path) -> str:
    """Return a name whose file, if it has one, is relative to a folder."""
    file = _FILE.match(name)
    return f"{folder / Path(file.group()).expanduser()}{name[file.end() :]}" if file else name


def located(setting: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting that a file gives: a path becomes one below the file's folder."""
    if setting == "options" and isinstance(value, Mapping):
        return {name: located(name, each, folder) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    if setting in ("weights", "classes") or (setting == "model" and value.endswith(".safetensors")):
        return str(folder / Path(value).expanduser())
    return below(value, folder) if setting in _NAMED and ".py:" in value else value


def find_object(what: str, reference: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """Return what a reference names; ``what`` it is to be, and what is expected of it, are words for errors."""
    place, _, name = reference.rpartition(":")
    module = _import(what, place)
    found = getattr(module, name, None)
    if found is not None and fits(found):
        return found
    suitable = [
        key
        for key, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not key.startswith("_") and fits(value)
    ]
    instead = f"It has {few(suitable)}." if suitable else f"Nothing in it is {expected}."
    if found is None:
        raise UnknownNameError(f"{what}: {place!r} has no {name!r}.{close_matches(name, suitable)} {instead}")
    raise OptionError(f"{what} {reference!r} must name {expected}, got {_described(found)}. {instead}")


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, of all installed packages."""
    changed = []
    for folder in sys.path:
        try:
            changed.append((folder, Path(folder).stat().st_mtime_ns))
        except OSError:
            continue
    return _read_points(group, tuple(changed))


@lru_cache(maxsize=32)
def _read_points(group: str, changed: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    # Reads the metadata of every package: 50 ms and more, so once for the folders as they are.
    return tuple(entry_points(group=group))


@dataclass(frozen=True)
class Kind:
    """Something that can be added from outside: what there is of it here, and what others must be.

    Packages add theirs by entry points in the group ``findtta.<what>s``, such as ``findtta.methods``.
    """

    what: str
    built_in: Mapping[str, Any]  # objects, or where they are: "module:NAME", imported when used
    expected: str  # what others must be, in words
    fits: Callable[[Any], bool]
    declares: tuple[str, ...] = ()  # class attributes that others must set

    def names(self) -> list[str]:
        """Return the names of all there are, without importing them."""
        return [*self.built_in, *self._points()]

    def knows(self, name: str) -> bool:
        """Tell whether a name may be one of this kind, without importing anything."""
        return name in self.built_in or is_reference(name) or name in self._points()

    def load(self, name: str) -> Any:
        """Return what a name means; a built-in name always means the built-in."""
        if name in self.built_in:
            found = self.built_in[name]
            return resolve_name(found) if isinstance(found, str) else found
        points = {} if is_reference(name) else self._points()
        if name in points:
            found = self._load_point(name, points[name])
        elif is_reference(name):
            found = find_object(self.what, name, self.fits, self.expected)
        else:
            known = [*self.built_in, *points]
            raise UnknownNameError(
                f"{self.what} must be one of {', '.join(known)} or file.py:NAME, got {name!r}."
                f"{close_matches(name, known)}"
            )
        missing = [attribute for attribute in self.declares if not getattr(found, attribute, None)]
        if missing:
            raise OptionError(f"{self.what} {name!r} must set {few(self.declares)}, but has no {few(missing)}.")
        return found

    def available(self) -> dict[str, Any]:
        """Load all there are; one of another package that is broken is left out with a warning."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.load(name)
            except Exception as error:
                if name in self.built_in:
                    raise
                warnings.warn(f"{self.what} {name!r} of another package cannot be loaded: {error}", stacklevel=3)
        return found

    def split(self, text: str) -> tuple[str, list[str]]:
        """Split ``"mine.py:Mine:beta=0.3,steps=2"`` into the name and ``["beta=0.3", "steps=2"]``."""
        name, _, rest = text.partition(":")
        if name not in self.built_in:
            name, *options = _OPTIONS.split(text, maxsplit=1)
            rest = options[0] if options else ""
        return name, rest.split(",") if rest else []

    def _points(self) -> dict[str, str]:
        points = installed(f"findtta.{self.what}s")
        return {point.name: point.value for point in points if point.name not in self.built_in}

    def _load_point(self, name: str, value: str) -> Any:
        try:
            found = resolve_name(value)
        except MissingExtraError:
            raise
        except Exception as error:
            raise OptionError(
                f"{self.what} {name!r} of another package cannot be imported from {value}: {_said(error)}"
            ) from error
        if not self.fits(found):
            raise OptionError(
                f"{self.what} {name!r} must name {self.expected}, but {value} is {_described(found)}."
            )
        return found


def takes(value: Any, count: int) -> bool:
    """Tell whether something is a function that can be called with this many arguments."""
    if not callable(value) or isinstance(value, type):
        return False
    try:
        inspect.signature(value).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _described(found: Any) -> str:
    kind = "class" if isinstance(found, type) else "function" if inspect.isfunction(found) else "object"
    return f"the {kind} {getattr(found, '__name__', type(found).__name__)!r}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error).rstrip('.')}."


def _import(what: str, place: str) -> ModuleType:
    path = Path(place).expanduser()
    if place.endswith(".py") and not path.is_file():
        raise OptionError(
            f"{what}: {place!r} cannot be imported: there is no such file. Paths are relative to the working "
            "directory."
        )
    try:
        return _load_file(path) if place.endswith(".py") else importlib.import_module(place)
    except MissingExtraError:
        raise
    except (Exception, SystemExit) as error:
        file = str(path.resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if isinstance(error, SyntaxError) and error.filename == file:
            lines.append(error.lineno)
        where = f" (line {lines[-1]})" if lines else ""
        raise OptionError(f"{what}: {place!r} cannot be imported{where}: {_said(error)}") from error


def _load_file(path: Path) -> ModuleType:
    """Import a file, once for each content.

    The name of the module says where the file is, so that other processes can unpickle its objects.
    """
    place = base64.b32encode(str(path.resolve()).encode()).decode().rstrip("=").lower()
    stem = re.sub(r"\W", "_", path.stem)
    return importlib.import_module(f"{__name__}.{stem}_{_content(path)}_{place}")


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


class _Source(SourceFileLoader):
    """Compiles the file as it is now: compiled files beside it may be those of another content of the same age."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Files:
    """Finds the modules that :func:`_load_file` names."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        content, place = fullname.rsplit("_", 2)[1:]
        file = Path(base64.b32decode(place.upper() + "=" * (-len(place) % 8)).decode())
        if _content(file) != content:
            raise ImportError(f"{file} has been changed since")
        return importlib.util.spec_from_file_location(fullname, file, loader=_Source(fullname, str(file)))


sys.meta_path.append(_Files)
