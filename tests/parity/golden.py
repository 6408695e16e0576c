"""Recorded outputs of the authors' own code, and how to compare with them.

A set of recordings is a folder with ``inputs.npz`` (the stream) and one npz per method; ``tests/golden/README.md``
says what the fields mean. That set, C, is of this project's own images and model, and always there. Set A, of
CIFAR images, which cannot be distributed, is compared where the shared reference data is present.
"""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from findtta import Adapted
from findtta.models.open import load
from findtta.models.zoo import SHIPPED

SHARED = Path(__file__).resolve().parents[3] / "shared"
SETS = {"C": Path(__file__).resolve().parents[1] / "golden"}
if (SHARED / "golden" / "A" / "inputs.npz").exists():
    SETS["A"] = SHARED / "golden" / "A"
DTYPES = {"f64": torch.float64, "f32": torch.float32}
F64_TOLERANCE = 1e-8
# Largest difference between the authors' own float32 and float64 runs, over both sets.
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
def arrays(name: str, method: str) -> dict[str, np.ndarray]:
    """All arrays of a file of a set."""
    with np.load(SETS[name] / f"{method}.npz") as file:
        return dict(file)


def each_run(method: str) -> pytest.MarkDecorator:
    """Parametrise a test with ``recording``: every set, run and precision that is recorded for a method.

    The first batches of a run in float64 are the sharper comparison: those of the first run of set C are fast,
    those of its other runs and of the first run of set A slow. Slow are also all batches of one run in float32,
    which is quicker. The rest is for the night.
    """
    parameters, whole = [], pytest.mark.slow
    for name in [name for name, folder in SETS.items() if (folder / f"{method}.npz").exists()]:
        fields = arrays(name, method)
        runs = [key.removesuffix(".hp") for key in fields if key.endswith(".hp")]
        for run in runs:
            few = first_batches(fields, run)
            first, other = ((), pytest.mark.slow) if name == "C" else (pytest.mark.slow, pytest.mark.nightly)
            sizes = [("f64", few, first if run == runs[0] else other)]
            if few is not None:
                sizes.append(("f64", None, pytest.mark.nightly))
            if name == "C" and any(key.startswith(f"{run}.f32.") for key in fields):
                sizes.append(("f32", None, whole))
                whole = pytest.mark.nightly
            for precision, batches, mark in sizes:
                part = f"-{batches}-batches" if batches else ""
                recording = Recording(name, method, run, precision, batches)
                parameters.append(pytest.param(recording, id=f"{name}-{run}-{precision}{part}", marks=mark))
    return pytest.mark.parametrize("recording", parameters)


def first_batches(fields: dict[str, np.ndarray], run: str) -> int | None:
    """How many batches show an update and what follows from it, or SAR's recovery; None for all."""
    recovered = fields.get(f"{run}.f64.recovered", np.zeros(1))
    count = int(recovered.argmax()) + 1 if recovered.any() else 2
    return count if count < len(fields[f"{run}.f64.logits"]) else None


def optimizer_options(recording: "Recording") -> dict[str, object]:
    hp = recording.hp
    common = {"lr": hp["lr"], "weight_decay": hp.get("weight_decay", 0.0)}
    if hp["optimizer"] == "Adam":
        return common | {"optimizer": "adam", "momentum": hp["betas"][0]}
    return common | {"optimizer": "sgd", "momentum": hp["momentum"], "nesterov": hp["nesterov"]}


class Recording:
    """One run of one method in one precision: all its batches, or the first of them."""

    def __init__(self, name: str, method: str, run: str, precision: str, batches: int | None = None) -> None:
        self.batches = batches
        self.name, self.method, self.run, self.precision = name, method, run, precision
        self.dtype = DTYPES[precision]
        self.fields = arrays(name, method)
        self.inputs = arrays(name, "inputs")
        self.hp: dict[str, Any] = json.loads(str(self.fields[f"{run}.hp"]))

    def __getitem__(self, field: str) -> np.ndarray:
        return self.fields[f"{self.run}.{self.precision}.{field}"]

    @property
    def tolerance(self) -> float:
        if self.precision == "f64":
            return F64_TOLERANCE
        # Our float32 run may be as far from float64 as theirs.
        return 2 * F32_TOLERANCE.get(self.method, {}).get(self.run, F32_WITHOUT_UPDATES)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation the images are normalised with, ``(3, 1, 1)`` each."""
        mean, deviation = (torch.from_numpy(self.inputs[key]).double()[:, None, None] for key in ("mean", "std"))
        return mean, deviation

    def images(self) -> Tensor:
        """Images in [0, 1], channels first, ``(batches, B, 3, H, W)``."""
        images = torch.from_numpy(self.inputs["images"][: self.batches]).double() / 255
        return images.movedim(-1, 2).contiguous().to(self.dtype)

    def stream(self) -> Tensor:
        """Inputs of the model: the images, normalised."""
        mean, deviation = self.moments
        pixels = (torch.from_numpy(self.inputs["images"][: self.batches]).double() / 255).movedim(-1, 2)
        return ((pixels - mean) / deviation).contiguous().to(self.dtype)

    def network(self) -> nn.Module:
        return source_network(str(self.inputs["model"])).to(self.dtype)

    def assert_close(self, actual: Tensor | np.ndarray, field: str, index: Any = ..., scale: float = 1) -> None:
        expected = self[field][index]
        error = np.abs(np.asarray(actual, dtype=np.float64) - expected).max()
        where = f"{self.name} {self.method} {self.run} {self.precision} {field}"
        assert error <= scale * self.tolerance, (
            f"{where}: off by {error:.2g}, allowed {scale * self.tolerance:.2g}"
        )

    def assert_same(self, actual: Any, field: str, index: Any = ...) -> None:
        np.testing.assert_array_equal(np.asarray(actual), self[field][index], err_msg=f"{self.run} {field}")

    def assert_same_logits(self, logits: Tensor) -> None:
        """Compare logits ``(batches, B, K)``."""
        self.assert_close(logits, "logits", slice(len(logits)))

    def recorded_states(self) -> dict[int, int]:
        """Rows of the fields that are recorded after the first and the last batch, by the batch."""
        count = len(self.inputs["images"])
        return {0: 0} if self.batches else {0: 0, count - 1: 1}

    def assert_same_affine(self, learned: list[tuple[Tensor, Tensor]]) -> None:
        """Compare the affine parameters after the first batch and, if all were run, after the last."""
        for row, (weight, bias) in zip(self.recorded_states().values(), learned, strict=False):
            self.assert_close(weight, "weight", row)
            self.assert_close(bias, "bias", row)


def source_network(name: str) -> nn.Module:
    """Load a model by its name: a shipped one, without its normalisation, or one of the shared data."""
    if name in SHIPPED:
        return load(name).net
    spec = importlib.util.spec_from_file_location("shared_models", SHARED / "data" / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.load(name)[0]
    return model


class Normalized(nn.Module):
    """A network that takes images in [0, 1] and normalises them itself."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.network = recording.network()
        mean, deviation = recording.moments
        self.register_buffer("mean", mean.to(recording.dtype))
        self.register_buffer("deviation", deviation.to(recording.dtype))

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images - self.mean) / self.deviation)


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
