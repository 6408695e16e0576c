"""Scenarios: the ways in which samples of several domains arrive."""

from findtta.streams.order import Scenario
from findtta.streams.scenarios.classes import LabelSorted, Markov, Wild
from findtta.streams.scenarios.mixtures import Clean, CrossMix, Lifelong, MostlyClean, Pairs, Potpourri
from findtta.streams.scenarios.sequences import Gradual, Recurring, Static
from findtta.streams.scenarios.turns import Random, Shuffle

#: The scenarios by name.
SCENARIOS: dict[str, type[Scenario]] = {
    kind.name: kind
    for kind in (
        Static,
        CrossMix,
        Shuffle,
        Random,
        Wild,
        LabelSorted,
        Markov,
        Lifelong,
        Recurring,
        Gradual,
        Pairs,
        Potpourri,
        MostlyClean,
        Clean,
    )
}

__all__ = [
    "SCENARIOS",
    "Clean",
    "CrossMix",
    "Gradual",
    "LabelSorted",
    "Lifelong",
    "Markov",
    "MostlyClean",
    "Pairs",
    "Potpourri",
    "Random",
    "Recurring",
    "Scenario",
    "Shuffle",
    "Static",
    "Wild",
]
