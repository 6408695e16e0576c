"""Who computes: this process, or workers of Ray."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass

import torch

from findtta._processes import usable_cores
from findtta.errors import MissingExtraError, OptionError
from findtta.predict.settings import Settings

#: From so many images on, starting Ray is worth its while.
RAY_FROM = 10_000


@dataclass(frozen=True)
class Choice:
    """Who computes.

    Attributes:
        engine: ``"local"`` or ``"ray"``.
        workers: How many networks compute at once; None leaves it to the size of a cluster.
        reason: Why, for people to read.
    """

    engine: str
    workers: int | None
    reason: str


def choose(
    images: int, settings: Settings, *, engine: str | None, workers: int | None, ray_address: str | None
) -> Choice:
    """Choose who computes.

    Args:
        images: How many are left to do.
        settings: What is computed.
        engine: ``"local"`` or ``"ray"``, if it was said.
        workers: How many workers of Ray, if it was said.
        ray_address: The cluster, if one was named.

    Returns:
        The choice.
    """
    if engine not in (None, "local", "ray"):
        raise OptionError(f"engine must be 'local' or 'ray', got {engine!r}.")
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers must be at least 1, got {workers!r}.")
    if engine == "local":
        for name, value in (("workers", workers), ("ray_address", ray_address)):
            if value is not None:
                raise OptionError(f"{name} is for the engine 'ray', but the engine is 'local'; leave one out.")
        return Choice("local", 1, "as asked for")
    has_ray = importlib.util.find_spec("ray") is not None and importlib.util.find_spec("pyarrow") is not None
    there = workers or (None if _is_cluster(ray_address) else _places(settings))
    if engine == "ray" or workers is not None or ray_address is not None:
        if not has_ray:
            raise MissingExtraError("the engine 'ray' needs the 'ray' extra: pip install \"findtta[ray]\"")
        return Choice("ray", there, "as asked for")
    if images < RAY_FROM:
        return Choice("local", 1, f"fewer than {RAY_FROM:,} images")
    if not has_ray:
        return Choice("local", 1, 'Ray is not installed: pip install "findtta[ray]"')
    if there == 1:
        return Choice("local", 1, "there is room for one worker")
    return Choice("ray", there, f"{RAY_FROM:,} images or more")


def _is_cluster(ray_address: str | None) -> bool:
    """Tell whether there is a Ray already, whose size decides."""
    joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return ray_address is not None or bool(os.environ.get("RAY_ADDRESS")) or bool(joined)


def _places(settings: Settings) -> int:
    """Return for how many networks this machine has room."""
    if torch.device(settings.device).type == "cuda":
        return max(torch.cuda.device_count(), 1)
    return max(usable_cores() // settings.threads, 1)
