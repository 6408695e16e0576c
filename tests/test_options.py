"""Options are checked by the types that they are declared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from findtta.errors import OptionError
from findtta.options import AtLeastZero, Count, Fraction, Options, Positive, Seed, Text, Whole, option


@dataclass(frozen=True, kw_only=True)
class Typed(Options):
    count: Count = 1
    share: Fraction = 0.5
    rate: Positive = 0.1
    decay: AtLeastZero = 0
    seed: Seed = 0
    kind: Literal["one", "other"] | None = None
    switch: bool = False
    name: Text = ""
    names: tuple[Text, ...] = ()
    levels: tuple[Whole, ...] | Whole | None = None
    named: Mapping[str, Any] = option(dict, "values by name")


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "other", "levels": 3, "named": {"a": 1}},
        {"levels": (1, -2), "names": ["a", "b"], "share": 1},
        {"kind": None, "levels": None, "decay": 2.5, "switch": True},
    ],
    ids=str,
)
def test_values_that_fit_are_taken(values):
    made = Typed(**values)
    assert all(getattr(made, name) == value for name, value in values.items())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"count": True}, "count must be a whole number"),
        ({"share": 1.5}, "share must be a number from 0 to 1"),
        ({"rate": 0}, "rate must be above 0"),
        ({"rate": float("inf")}, "rate must be a number"),
        ({"decay": -1}, "decay must be a number of at least 0"),
        ({"seed": 2**63}, "seed must be a whole number from 0 to 2"),
        ({"kind": "third"}, "kind must be 'one' or 'other', got 'third'"),
        ({"switch": 1}, "switch must be True or False"),
        ({"name": None}, "name must be a text"),
        ({"names": "ab"}, "names must be a tuple or list, got 'ab'"),
        ({"names": ("a", 2)}, "names must be a text, got 2"),
        ({"levels": (1, 2.5)}, "levels must be a whole number"),
        ({"levels": "5"}, "levels must be a whole number, got '5'"),
        ({"named": ["a"]}, "named must be names with values"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_named(values, message):
    with pytest.raises(OptionError) as caught:
        Typed(**values)
    assert message in str(caught.value)
