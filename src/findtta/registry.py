"""The one list of methods: those of this package, and those other packages bring.

A third-party package adds a method with an entry point in the group ``findtta.methods``, whose
value names a subclass of :class:`findtta.Adapted`.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

from findtta.algorithms.base import Adapted, Cost
from findtta.errors import FindTTAError
from findtta.options import Options, make_options, require_known
from findtta.tables import render

ENTRY_POINT_GROUP = "findtta.methods"

# Imported only when used.
BUILT_IN: dict[str, str] = {
    "source": "findtta.algorithms.source:Source",
    "tbn": "findtta.algorithms.tbn:TBN",
    "alpha-bn": "findtta.algorithms.alpha_bn:AlphaBN",
    "tent": "findtta.algorithms.tent:Tent",
    "eata": "findtta.algorithms.eata:EATA",
    "sar": "findtta.algorithms.sar:SAR",
    "deyo": "findtta.algorithms.deyo:DeYO",
    "iabn": "findtta.algorithms.iabn:IABN",
    "note": "findtta.algorithms.note:NOTE",
    "rotta": "findtta.algorithms.rotta:RoTTA",
    "vida": "findtta.algorithms.vida:ViDA",
    "find": "findtta.algorithms.find:FIND",
    "find-star": "findtta.algorithms.find_star:FINDStar",
    "find-soft": "findtta.algorithms.find_soft:FINDSoft",
}

_PROPERTIES = ("stateful", "needs_grad", "batch_dependent", "exportable")


@dataclass(frozen=True)
class MethodInfo:
    """What a method is: its declared properties, its options and where it comes from."""

    name: str
    summary: str
    citation: str
    weakness: str
    stateful: bool
    needs_grad: bool
    batch_dependent: bool
    exportable: bool
    cost: Cost
    options: Mapping[str, tuple[Any, str]]
    presets: Mapping[str, Mapping[str, Any]]

    def default_text(self) -> str:
        """Return the defaults as one line of text, apart from those that depend on the model."""
        preset = next(iter(self.presets.values()), {})
        defaults = {name: default for name, (default, _) in self.options.items() if default is not None}
        defaults |= {name: value for name, value in preset.items() if self.options[name][0] is None}
        return f"defaults: {_listed(defaults)}" if defaults else "no options"

    def __str__(self) -> str:
        properties = [f"{key.replace('_', ' ')}: {'yes' if getattr(self, key) else 'no'}" for key in _PROPERTIES]
        lines = [f"{self.name}: {self.summary}", f"  {', '.join(properties)}"]
        lines += [f"  passes per batch: {self.cost.forward} forward, {self.cost.backward} backward"]
        lines += [f"  when it fails: {self.weakness}"] if self.weakness else []
        lines += [f"  {self.citation}"]
        lines += [f"  {key} = {default!r}: {meaning}" for key, (default, meaning) in self.options.items()]
        lines += [f"  preset {preset}: {_listed(values)}" for preset, values in self.presets.items()]
        return "\n".join(lines)


def _listed(values: Mapping[str, Any]) -> str:
    texts = {name: f"{value:.4g}" if isinstance(value, float) else repr(value) for name, value in values.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


class Catalogue(dict[str, MethodInfo]):
    """Methods by name; iterating gives the names, printing gives a table."""

    def __str__(self) -> str:
        header = ("method", *(key.replace("_", " ") for key in _PROPERTIES), "forward", "backward")
        rows = [
            (m.name, *(getattr(m, key) for key in _PROPERTIES), m.cost.forward, m.cost.backward)
            for m in self.values()
        ]
        details = [f"{m.name}: {m.summary}\n  {m.citation}\n  {m.default_text()}" for m in self.values()]
        return "\n".join([render(header, rows), "", "(forward and backward: passes per batch)", "", *details])

    __repr__ = __str__


def methods() -> Catalogue:
    """List the available methods.

    Returns:
        A mapping from method name to its :class:`MethodInfo`, which prints as a table.

    Example:
        >>> "find" in methods()
        True
    """
    catalogue = Catalogue()
    for name in method_names():
        try:
            catalogue[name] = describe(load_method(name))
        except Exception as error:
            if name in BUILT_IN:
                raise
            # A broken package of a third party must not hide all other methods.
            warnings.warn(f"method {name!r} of another package cannot be loaded: {error}", stacklevel=2)
    return catalogue


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    return list(_sources())


def describe(method: type[Adapted]) -> MethodInfo:
    """Collect the declared properties of a method."""
    declared = ("name", "summary", "citation", "weakness", *_PROPERTIES)
    known = {name: getattr(method, name) for name in declared}
    fields = dataclasses.fields(method.options_type)
    options = {field.name: (field.default, field.metadata.get("meaning", "")) for field in fields}
    return MethodInfo(**known, cost=method.passes, options=options, presets=method.options_type.presets())


def load_method(name: str) -> type[Adapted]:
    """Import the class of a method by its name."""
    sources = BUILT_IN if name in BUILT_IN else _sources()
    require_known("method", name, sources)
    method = resolve_name(sources[name])
    if not (isinstance(method, type) and issubclass(method, Adapted)):
        raise FindTTAError(
            f"method {name!r} must name a subclass of findtta.Adapted, but {sources[name]} is {method!r}."
        )
    return method


def build_options(method: type[Adapted], given: Mapping[str, Any]) -> Options:
    """Make the method's options from keyword arguments, refusing names it does not have."""
    return make_options(f"method {method.name!r}", method.options_type, given)


def _sources() -> dict[str, str]:
    third_party = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return third_party | BUILT_IN  # a built-in name always means the built-in method
