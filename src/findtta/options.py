"""How methods, partitioners, streams and commands declare their options, and the one set of checks on them.

An option is a dataclass field that carries its meaning, from which method pages and command-line flags are made.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from findtta.errors import OptionError, UnknownNameError, close_matches, first_line

#: What a model can be named by, for help texts.
MODEL_NAMES = (
    "a shipped model, an architecture or timm:NAME with weights, a .safetensors file, or file.py:CALLABLE"
)
#: What compiling a model means, for help texts.
COMPILE = (
    "run the model as compiled code (torch.compile), which takes a minute or more to make; predictions change in "
    "the last bits"
)
#: In which numbers a model computes; see :data:`PRECISION`.
Precision = Literal["float32", "bfloat16"]
#: What the precision means, for help texts.
PRECISION = (
    "precision of the convolutions and matrix products of the model (autocast); statistics are always computed in "
    "float32"
)


def device_kind(device: str, *, compile: bool, precision: Precision = "float32") -> str:
    """Return what a device, compiling and the precision mean for a result: ``"cpu"``, ``"cuda, compiled"``, ..."""
    # Compiled code adds numbers in another order, and that can decide which sample is the nearest.
    how = [", compiled"] * compile + [f", {precision}"] * (precision != "float32")
    return "".join([require_device(device, elsewhere=True).type, *how])


def option(default: Any, meaning: str, **flag: Any) -> Any:
    """Return a dataclass field with a default (``dict`` or ``list`` for an empty one) and its meaning for users.

    What follows is how the option appears on the command line, where that differs from what its name and type
    suggest: ``flag`` (its name there, None for no flag), ``short`` (another name, such as ``"-o"``), ``metavar``,
    ``nargs``, ``parse`` (from text to a value), ``shown`` (the default in words).
    """
    metadata = {"meaning": meaning, **flag}
    if default in (dict, list):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def require_known(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ``UnknownNameError`` unless a value is one of the known names."""
    known = list(known)
    if value not in known:
        raise UnknownNameError(
            f"{name} must be one of {', '.join(known)}, got {value!r}.{close_matches(str(value), known)}"
        )


def require_int(name: str, value: object, low: float = 1, high: float = math.inf) -> None:
    """Raise ``OptionError`` unless a value is a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError(f"{name} must be a whole number{_bounds(low, high)}, got {value!r}.")


def require_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise ``OptionError`` unless a value is a number within bounds; infinity only where no bound is given."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    finite = math.isinf(low) or math.isfinite(number)
    if not (low <= number <= high and finite):
        raise OptionError(f"{name} must be a number{_bounds(low, high)}, got {value!r}.")


def require_choice(name: str, value: object, *choices: str) -> None:
    """Raise ``OptionError`` unless a value is one of a few choices."""
    if value not in choices:
        raise OptionError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}.")


def require_positive(name: str, value: object) -> None:
    """Raise ``OptionError`` unless a value is a finite number above 0."""
    require_number(name, value, 0)
    if value == 0:
        raise OptionError(f"{name} must be above 0, got {value!r}.")


def require_flag(name: str, value: object) -> None:
    """Raise ``OptionError`` unless a value is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, got {value!r}.")


def require_text(name: str, value: object) -> None:
    """Raise ``OptionError`` unless a value is a text."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a text, got {value!r}.")


def usable_devices() -> list[str]:
    """Return the names of the devices that torch can use in this process."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def require_device(value: Any, *, elsewhere: bool = False) -> Any:
    """Return a device of torch; raise ``OptionError`` unless torch can use it in this process.

    Of a device that is used ``elsewhere``, such as on the machines of a cluster, only the name is checked.
    """
    import torch

    try:
        device = torch.device(value)
        if not elsewhere:
            torch.zeros(1, device=device).cpu()
    except Exception as error:  # whatever the backend raises
        reason = first_line(error).partition(". ")[0]
        raise OptionError(
            f"device must be one that torch can use here ({', '.join(usable_devices())}), got {value!r}: {reason}."
        ) from error
    return device


# Types of options with what their values must be; ``Literal``, ``bool``, tuples and mappings are checked as well.
Text = Annotated[str, require_text]
Number = Annotated[float, require_number]
Fraction = Annotated[float, partial(require_number, low=0, high=1)]
AtLeastZero = Annotated[float, partial(require_number, low=0)]
Positive = Annotated[float, require_positive]
Whole = Annotated[int, partial(require_int, low=-math.inf)]
Count = Annotated[int, require_int]  # a whole number of at least 1
AtLeastTwo = Annotated[int, partial(require_int, low=2)]
Seed = Annotated[int, partial(require_int, low=0, high=2**63 - 1)]


def require_type(name: str, value: object, kind: Any) -> None:
    """Raise ``OptionError`` unless a value is what the type of its option asks for, one of the types above."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is not None or NoneType not in parts:
            *others, last = (part for part in parts if part is not NoneType)
            if not any(_has_type(value, part) for part in others):
                require_type(name, value, last)
    elif origin is Annotated:
        kind.__metadata__[0](name, value)
    elif origin is Literal:
        require_choice(name, value, *parts)
    elif origin is tuple:
        if not isinstance(value, tuple | list):
            raise OptionError(f"{name} must be a tuple or list, got {value!r}.")
        for item in value:
            require_type(name, item, parts[0])
    elif origin is Mapping and not isinstance(value, Mapping):
        raise OptionError(f"{name} must be names with values, got {value!r}.")
    elif kind is bool:
        require_flag(name, value)


def _has_type(value: object, kind: Any) -> bool:
    try:
        require_type("value", value, kind)
    except OptionError:
        return False
    return True


def _bounds(low: float, high: float) -> str:
    if math.isinf(low):
        return ""
    return f" of at least {_plain(low)}" if math.isinf(high) else f" from {_plain(low)} to {_plain(high)}"


def _plain(bound: float) -> str:
    return "2**63 - 1" if bound == 2**63 - 1 else f"{bound:g}" if isinstance(bound, float) else str(bound)


def split_list(text: str) -> list[str]:
    """Split a list at its commas, except those between the settings of one entry.

    Example:
        >>> split_list("crossmix,wild:delta=0.01,variant=paper,mine.py:Bursts:length=3")
        ['crossmix', 'wild:delta=0.01,variant=paper', 'mine.py:Bursts:length=3']
    """
    entries: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if entries and "=" in entries[-1].partition(":")[2] and re.match(r"[\w-]+\s*=", part):
            entries[-1] += f",{part}"
        elif part:
            entries.append(part)
    return entries


def parse_value(text: str) -> Any:
    """Read a value as written on a command line: a number, true, false, null, a list, or else a text."""
    for candidate in (text, text.lower()):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return text


def parse_assignments(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the values by name of options such as ``["alpha=0.9"]``; ``name`` is what errors call the list."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"{name} must look like NAME=VALUE, got {text!r}.")
        values[key.strip()] = parse_value(value.strip())
    return values


@dataclass(frozen=True)
class Options:
    """Options of what has none; classes with options inherit from it.

    Values are checked by the types of the options; what types cannot say is checked in ``__post_init__``.
    """

    def __post_init__(self) -> None:
        this: Any = type(self)
        for name, kind in _option_types(this).items():
            require_type(name, getattr(self, name), kind)

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Return the values of each preset by its name; most methods have no presets."""
        return {}


@cache
def _option_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


OptionsT = TypeVar("OptionsT", bound=Options)


def make_options(owner: str, kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """Make options from names and values; others keep their defaults.

    If there is no such option, an ``UnknownNameError`` says what each of them does; it calls what has them by
    ``owner``, such as ``"method 'find'"``.
    """
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in given:
        if name not in known:
            lines = [
                f"  {field.name} (default {_default(field)!r}): {field.metadata.get('meaning', '')}"
                for field in known.values()
            ]
            listed = "\nIts options are:\n" + "\n".join(lines) if lines else " It has no options."
            raise UnknownNameError(f"{owner} has no option {name!r}.{close_matches(str(name), known)}{listed}")
    return kind(**given)
