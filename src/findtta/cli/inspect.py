"""Show which layers of a model can be adapted, and what looks wrong with them or with its inputs."""

import argparse

import torch

from findtta.errors import OptionError
from findtta.functional import native
from findtta.inspection import inspect
from findtta.models.open import load_module
from findtta.options import MODEL_NAMES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta inspect``."""
    parser.add_argument(
        "model", help=f"{MODEL_NAMES}; an architecture needs no weights here, and a callable returns the model"
    )
    parser.add_argument("--weights", metavar="FILE", help="state dict to load first (.pt or .safetensors)")
    parser.add_argument(
        "--num-classes",
        type=int,
        metavar="N",
        help="classes of the weights (default: as their card says, or 1000)",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help="a batch as the model gets it (a tensor saved by torch.save, or .npy), to check its range and drift",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the inspection; the exit code is 1 if the model cannot be adapted."""
    model = load_module(arguments.model, arguments.weights, arguments.num_classes)
    inspection = inspect(model, _load_batch(arguments.inputs) if arguments.inputs else None)
    print(inspection)
    print(f"compiled functions for the CPU: {native.status()}")
    return 0 if inspection.adaptable else 1


def _load_batch(path: str) -> torch.Tensor:
    import numpy as np

    try:
        if path.endswith(".npy"):
            return torch.from_numpy(np.load(path, allow_pickle=False)).float()
        batch = torch.load(path, weights_only=True)
    except Exception as error:
        raise OptionError(
            f"--inputs must be a saved tensor or a .npy array, but {path!r} cannot be read: {error}"
        ) from error
    if not isinstance(batch, torch.Tensor):
        raise OptionError(f"--inputs must hold one tensor, but {path!r} holds a {type(batch).__name__}.")
    return batch
