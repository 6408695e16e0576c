"""Recorded outputs of the authors' own code, and how to compare with them.

A set of recordings is a folder with ``inputs.npz`` (the stream) and one npz per method; its README says
what the fields mean. Everything here is read from the files, so that another set can be run by putting
its folder beside the first.
"""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from findtta import Adapted

SHARED = Path(__file__).resolve().parents[3] / "shared"
SETS = sorted(path.parent for path in SHARED.glob("golden/*/inputs.npz"))
DTYPES = {"f64": torch.float64, "f32": torch.float32}
F64_TOLERANCE = 1e-8
# Largest difference between the authors' own float32 and float64 runs, over the sets.
F32_TOLERANCE = {
    "tent": {"official": 2e-2, "paper": 2e-4},
    "eata": {"official": 1e-3, "dataset": 3e-4, "paper": 3e-3, "fisher": 7e-2, "fisher_off": 2e-2},
    "sar": {"official": 6e-4, "paper": 3e-4, "dataset": 6e-3, "recovery": 6e-1},
    "deyo": {"official": 8e-4, "paper": 4e-4},
    "note": {"official": 2e-4, "official_wd0": 5e-5, "paper": 2e-5},
    "rotta": {"official": 2e-5, "paper": 2e-5, "augmented": 2e-5},
}
F32_WITHOUT_UPDATES = 3e-4


@cache
def arrays(folder: Path, method: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{method}.npz") as file:
        return dict(file)


def runs(method: str) -> list[Any]:
    """Every (set, run) recorded for a method, as parameters of a test; none where nothing is recorded."""
    found = []
    for folder in SETS:
        if (folder / f"{method}.npz").exists():
            found += [(folder, key.removesuffix(".hp")) for key in arrays(folder, method) if key.endswith(".hp")]
    return found


class Recording:
    """One run of one method in one precision."""

    def __init__(self, folder: Path, method: str, run: str, precision: str) -> None:
        self.folder, self.method, self.run, self.precision = folder, method, run, precision
        self.dtype = DTYPES[precision]
        self.fields = arrays(folder, method)
        self.inputs = arrays(folder, "inputs")
        self.hp: dict[str, Any] = json.loads(str(self.fields[f"{run}.hp"]))

    def __contains__(self, field: str) -> bool:
        return f"{self.run}.{self.precision}.{field}" in self.fields

    def __getitem__(self, field: str) -> np.ndarray:
        return self.fields[f"{self.run}.{self.precision}.{field}"]

    @property
    def tolerance(self) -> float:
        if self.precision == "f64":
            return F64_TOLERANCE
        return F32_TOLERANCE.get(self.method, {}).get(self.run, F32_WITHOUT_UPDATES)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation the images are normalised with, ``(3, 1, 1)`` each."""
        mean, deviation = (torch.from_numpy(self.inputs[key]).double()[:, None, None] for key in ("mean", "std"))
        return mean, deviation

    def images(self) -> Tensor:
        """Images in [0, 1], channels first, ``(batches, B, 3, H, W)``."""
        return (torch.from_numpy(self.inputs["images"]).double() / 255).movedim(-1, 2).to(self.dtype)

    def stream(self) -> Tensor:
        """Inputs of the model: the images, normalised."""
        mean, deviation = self.moments
        pixels = (torch.from_numpy(self.inputs["images"]).double() / 255).movedim(-1, 2)
        return ((pixels - mean) / deviation).to(self.dtype)

    def network(self) -> nn.Module:
        return source_network(str(self.inputs["model"])).to(self.dtype)

    def assert_close(self, actual: Tensor | np.ndarray, field: str, index: Any = ..., scale: float = 1) -> None:
        expected = self[field][index]
        error = np.abs(np.asarray(actual, dtype=np.float64) - expected).max()
        where = f"{self.folder.name} {self.method} {self.run} {self.precision} {field}"
        assert error <= scale * self.tolerance, (
            f"{where}: off by {error:.2g}, allowed {scale * self.tolerance:.2g}"
        )

    def assert_same(self, actual: Any, field: str, index: Any = ...) -> None:
        np.testing.assert_array_equal(np.asarray(actual), self[field][index], err_msg=f"{self.run} {field}")

    def assert_same_logits(self, logits: Tensor) -> None:
        """Compare logits ``(batches, B, K)`` with what is recorded: all of them, or some of the last batch."""
        if "logits" in self:
            self.assert_close(logits, "logits")
        if "logits_last16" in self:
            self.assert_close(logits[-1, :16], "logits_last16")

    def assert_same_affine(self, after_first: tuple[Tensor, Tensor], after_last: tuple[Tensor, Tensor]) -> None:
        for index, (weight, bias) in enumerate((after_first, after_last)):
            self.assert_close(weight, "weight", index)
            self.assert_close(bias, "bias", index)


def source_network(name: str) -> nn.Module:
    """Load a pretrained network of the shared data by its name."""
    spec = importlib.util.spec_from_file_location("shared_models", SHARED / "data" / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.load(name)[0]
    return model


def affine(adapted: Adapted) -> tuple[Tensor, Tensor]:
    """Weights and biases of all adapted layers, concatenated in module order."""
    layers = [layer for _, layer in adapted.layers()]
    return (
        torch.cat([layer.norm.weight.detach() for layer in layers]),
        torch.cat([layer.norm.bias.detach() for layer in layers]),
    )


def replay(
    adapted: Adapted, batches: Tensor, after_batch: Callable[[int], None] = lambda index: None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Run the stream; return all logits, and the affine parameters after the first and the last batch."""
    logits, learned = [], []
    for index, batch in enumerate(batches):
        logits.append(adapted(batch))
        after_batch(index)
        if adapted.stateful and index in (0, len(batches) - 1):
            learned.append(affine(adapted))
    return torch.stack(logits), learned
