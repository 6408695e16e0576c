"""The one list of methods: those of this package, and those of other packages and files."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from findtta.algorithms.base import Adapted, Cost
from findtta.algorithms.outputs import combine
from findtta.options import Options, make_options
from findtta.plugins import Kind
from findtta.tables import render

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
    "cotta": "findtta.algorithms.cotta:CoTTA",
    "roid": "findtta.algorithms.roid:ROID",
    "tbr": "findtta.algorithms.tbr:TBR",
    "unmix-tns": "findtta.algorithms.unmix_tns:UnMixTNS",
    "instance": "findtta.algorithms.instance:Instance",
    "find": "findtta.algorithms.find:FIND",
    "find-star": "findtta.algorithms.find_star:FINDStar",
    "find-soft": "findtta.algorithms.find_soft:FINDSoft",
    "find-domains": "findtta.algorithms.find_domains:FINDDomains",
    "lame": "findtta.algorithms.lame:LAME",
    "t3a": "findtta.algorithms.t3a:T3A",
}


class _Methods(Kind):
    """Methods, and pairs such as ``find+lame``: a method, and one that changes its outputs."""

    def load(self, name: str) -> Any:
        under, plus, top = name.rpartition("+")
        if plus and self.knows(under):  # and not a folder with a plus in its name
            return combine(super().load(under), super().load(top))
        return super().load(name)


METHOD = _Methods(
    "method",
    BUILT_IN,
    "a subclass of findtta.Adapted",
    lambda found: isinstance(found, type) and issubclass(found, Adapted),
    declares=("name", "summary", "citation"),
)

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
    return Catalogue({name: describe(method) for name, method in METHOD.available().items()})


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    return METHOD.names()


def describe(method: type[Adapted]) -> MethodInfo:
    """Collect the declared properties of a method."""
    declared = ("name", "summary", "citation", "weakness", *_PROPERTIES)
    known = {name: getattr(method, name) for name in declared}
    fields = dataclasses.fields(method.options_type)
    options = {field.name: (field.default, field.metadata.get("meaning", "")) for field in fields}
    return MethodInfo(**known, cost=method.passes, options=options, presets=method.options_type.presets())


def load_method(name: str) -> type[Adapted]:
    """Import the class of a method by its name, which may be ``file.py:NAME``."""
    method: type[Adapted] = METHOD.load(name)
    return method


def build_options(method: type[Adapted], given: Mapping[str, Any]) -> Options:
    """Make the method's options from keyword arguments, refusing names it does not have."""
    return make_options(f"method {method.name!r}", method.options_type, given)
