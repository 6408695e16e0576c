"""Command-line flags made from option dataclasses: one spelling, one meaning and one default for each option."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from findtta.cli.config import read_config
from findtta.errors import OptionError
from findtta.options import parse_assignments, split_list

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
_METAVARS: Mapping[Any, str] = {int: "N", float: "X", Path: "PATH", dict: "NAME=VALUE", tuple: "ITEM,..."}
_PLURALS: Mapping[Any, str] = {int: "whole numbers", float: "numbers"}


def add_flags(parser: Parser, settings: type, only: Collection[str] | None = None) -> None:
    """Declare a flag for each option of a dataclass.

    Name and type of an option give its flag: ``batch_size: int`` is ``--batch-size N``, a ``bool`` is a switch, a
    mapping is ``NAME=VALUE`` and may be repeated, a tuple is a list with commas (with ``nargs="+"`` also with
    spaces). What is said of a flag in ``option(...)`` wins: ``short="-o"`` is a second name, and with
    ``repeat=True`` it may be given several times, and its value is a list. Options without a meaning, and those
    that are not among ``only``, get no flag.
    """
    for field, annotation in _options(settings, only):
        about = field.metadata
        names = [*filter(None, [about.get("short")]), f"--{_flag(field)}"]
        kind = _kind(annotation)
        help = f"{about['meaning']}{_default_text(field)}".replace("%", "%%")
        more: dict[str, Any] = {"metavar": about.get("metavar") or _METAVARS.get(kind, "NAME")}
        if choices := _choices(annotation):
            more = {"choices": choices}
        if kind is bool:
            more = {"action": "store_true"}
        elif kind is dict or about.get("repeat"):
            more["action"] = "append"
        elif kind is tuple:
            more["nargs"] = about.get("nargs")
        else:
            more["type"] = about.get("parse") or kind
        parser.add_argument(*names, dest=field.name, default=None, help=help, **more)


def add_config(parser: Parser) -> None:
    """Declare ``--config``, whose file :func:`given` reads."""
    meaning = "TOML or YAML file with model, input, method and limits (docs/models.md); flags win over it"
    parser.add_argument("--config", type=Path, metavar="FILE", help=meaning)


def given(arguments: argparse.Namespace, settings: type, only: Collection[str] | None = None) -> dict[str, Any]:
    """Return the values of options that were given on the command line or else in the file of ``--config``.

    The others keep their defaults. Another model on the command line also replaces what the file says about its
    own, and another method the options of the file's.
    """
    flags = _given_as_flags(arguments, settings, only)
    if getattr(arguments, "config", None) is None:
        return flags
    taken = {field.name for field in dataclasses.fields(settings) if only is None or field.name in {*only, "card"}}
    values = {name: value for name, value in read_config(arguments.config).items() if name in taken}
    if flags.get("model") not in (None, values.get("model")):
        values = {name: value for name, value in values.items() if name not in ("weights", "card")}
    if flags.get("method") not in (None, values.get("method")):
        values.pop("options", None)
    elif "options" in flags:
        flags["options"] = {**values.get("options", {}), **flags["options"]}
    return {**values, **flags}


def _given_as_flags(arguments: argparse.Namespace, settings: type, only: Collection[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field, annotation in _options(settings, only):
        value = getattr(arguments, field.name, None)
        if value is None:
            continue
        if _kind(annotation) is dict:
            value = parse_assignments(f"--{_flag(field)}", value)
        elif _kind(annotation) is tuple:
            parse: Callable[[str], Any] = field.metadata.get("parse") or str
            listed = split_list(",".join([value] if isinstance(value, str) else value))
            value = tuple(_parsed(f"--{_flag(field)}", parse, text) for text in listed)
        values[field.name] = value
    return values


def names(values: Sequence[str] | None) -> list[str] | None:
    """Return the names in ``["fog,snow", "contrast"]``, the values of a flag, one by one; None stays None."""
    return None if values is None else split_list(",".join(values))


def _parsed(flag: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise OptionError(f"{flag} must be {_PLURALS.get(parse, 'values')} such as 0,1,2, got {text!r}.") from None


def _options(settings: type, only: Collection[str] | None) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(settings)
    return [
        (field, hints[field.name])
        for field in dataclasses.fields(settings)
        if (only is None or field.name in only)
        and "meaning" in field.metadata
        and field.metadata.get("flag", "") is not None
    ]


def _flag(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("flag") or field.name).replace("_", "-")


def _kind(annotation: Any) -> Any:
    """Return the type that decides how a flag is read: the first of a union that is not None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        # One value or several of it: a list.
        annotation = next((part for part in parts if typing.get_origin(part) is tuple), parts[0])
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return str
    if origin is tuple:
        return tuple
    if origin is not None and issubclass(origin, Mapping):
        return dict
    return annotation if annotation in (bool, int, float, Path) else str


def _choices(annotation: Any) -> tuple[Any, ...]:
    parts = [annotation, *typing.get_args(annotation)]
    return next((typing.get_args(part) for part in parts if typing.get_origin(part) is typing.Literal), ())


def _default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default in words."""
    default = field.metadata.get("shown", field.default)
    if default is dataclasses.MISSING or default is None or default is False or default == ():
        return ""
    return f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
