"""Turning what a user writes on the command line into a model."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from torch import nn

from findtta.errors import MissingExtraError, OptionError, close_matches
from findtta.models.weights import fit, read_weights


def load_model(target: str, weights: str | None = None) -> nn.Module:
    """Build the model named by ``target`` and load ``weights`` into it.

    Args:
        target: ``timm:NAME``, ``package.module:CALLABLE`` or ``path/to/file.py:CALLABLE``.
        weights: A state dict to load, or None.

    Returns:
        The model.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise OptionError(f"model must look like timm:NAME, module:CALLABLE or file.py:CALLABLE, got {target!r}.")
    model = _timm_model(name) if place == "timm" else _call(place, name)
    if not isinstance(model, nn.Module):
        raise OptionError(f"model {target!r} must give a torch.nn.Module, but gave a {type(model).__name__}.")
    if weights is not None:
        state, _ = read_weights(weights)
        fit(model, state, arch=target, source=weights)
    return model


def _timm_model(name: str) -> Any:
    from findtta.models.external import import_timm

    timm = import_timm()
    if not timm.is_model(name):
        raise OptionError(f"timm has no model {name!r}.{close_matches(name, timm.list_models())}")
    return timm.create_model(name, pretrained=False)


def _call(place: str, name: str) -> Any:
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None:
                raise ImportError(f"no module in {place}")
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except MissingExtraError:
        raise
    except (ImportError, OSError, SyntaxError) as error:
        raise OptionError(
            f"model: {place!r} cannot be imported ({error}). Give a module on the path, or a file."
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise OptionError(f"model: {place!r} has no {name!r}.")
    return factory if isinstance(factory, nn.Module) else factory()
