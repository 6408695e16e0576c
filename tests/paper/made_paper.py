"""A tiny model, and results of the paper's runs that nothing was computed for."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from findtta.bench import Result, RunSpec
from findtta.paper import items
from findtta.paper.context import Context, Setup
from findtta.paper.items import Item
from findtta.paper.study import Probe, Results
from findtta.streams import parse
from made_results import samples_of
from nets import filled

HERE = str(Path(__file__))
NET = f"{HERE}:net"


def net() -> nn.Module:
    return filled(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=4, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        )
    )


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        raise ZeroDivisionError("no luck")


def broken() -> nn.Module:
    return Broken().eval()


def load(id: str) -> Item:
    return items.all_items()[id]


def tiny_setup(**settings: Any) -> Setup:
    return Setup(**{"model": NET, "data_options": {"count": 24}, **settings})


def tiny_context(**settings: Any) -> Context:
    return Context(**{"setups": (tiny_setup(),), "seeds": (0,), "batch_size": 16, **settings})


def all_setups(**settings: Any) -> tuple[Setup, ...]:
    """The three datasets of the paper, by name."""
    return tuple(
        Setup(**{"stands_for": name, "data": name, "model": "resnet50", "weights": "w.pt"} | settings)
        for name in ("cifar10-c", "cifar100-c", "imagenet-c")
    )


def made(spec: RunSpec, accuracy: float = 50.0, **changes: Any) -> Result:
    """What a run could have given."""
    scenario, settings = parse(spec.stream)
    domains = spec.domains or tuple(f"domain{number}@5" for number in range(15))
    config = {
        "method": spec.method,
        "options": {**spec.options, "cold_start": 10},
        "model": {"name": spec.model, "weights": "0123456789abcdef"},
        "data": {
            "name": "shapes-c (generated)" if spec.data == "shapes" else spec.data,
            "identity": "feed",
            "generated": spec.data == "shapes",
            "domains": list(domains),
            "images": (spec.images or 10_000) * len(domains),
        },
        "stream": {
            "scenario": scenario,
            "settings": settings,
            "batches": 100,
            "batch_size": spec.batch_size,
            "samples": 6400,
            "domains_per_batch": 14.8,
            "classes_per_batch": 10.0,
            "digest": digest([spec.stream, spec.seed]),
        },
        "seed": spec.seed,
    }
    rounds = settings.get("rounds", 1)
    fields: dict[str, Any] = {
        "digest": digest(spec.to_dict())[:20],
        "status": "done",
        "spec": spec.to_dict(),
        "config": config,
        "metrics": {"accuracy": accuracy},
        "per_round": [accuracy + rounds - 1 - 2 * number for number in range(rounds)],
        "samples": samples_of((spec.images or 400) * len(domains), len(domains), accuracy),
        "layers": [{"groups_mean": 4.0}, {"groups_mean": None}, {"groups_mean": 8.0}],
        "environment": {"system": "Linux x86_64", "torch": "2.13.0"},
    }
    return Result(**{**fields, **changes})


def failed(spec: RunSpec) -> Result:
    return made(spec, status="failed", metrics={}, error={"type": "OSError", "message": "no\nluck"})


def results_for(item: Item, context: Context, accuracy: Callable[[RunSpec], float] = lambda spec: 50.0) -> Results:
    return Results((spec, made(spec, accuracy(spec))) for spec in specs_of(item, context))


def specs_of(item: Item, context: Context) -> list[RunSpec]:
    """The runs that an item asks for."""
    return [one for one in item.asked(context) if isinstance(one, RunSpec)]


def probes_of(item: Item, context: Context) -> list[Probe]:
    """The measurements that an item asks for."""
    return [one for one in item.asked(context) if isinstance(one, Probe)]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
