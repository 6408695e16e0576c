"""A small, honest demonstration: train a network on drawn shapes, drift its inputs, adapt it.

Everything is generated, so it needs no data and no download.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from findtta._table import render
from findtta.api import adapt

SIZE = 32
CLASSES = ("disk", "square", "triangle", "cross", "ring", "bars")
METHODS = ("source", "tbn", "alpha-bn", "find", "find-star")
BATCH = 64


def draw_shapes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw coloured shapes on textured backgrounds.

    Returns:
        Images in [0, 1], ``(count, 3, 32, 32)``, and their class, ``(count,)``.
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    labels = torch.randint(len(CLASSES), (count,), generator=generator)
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle, size = uniform(0, 2 * torch.pi, 1, 1), uniform(0.35, 0.65, 1, 1)
    u, v = x - uniform(-0.3, 0.3, 1, 1), y - uniform(-0.3, 0.3, 1, 1)
    u, v = (u * angle.cos() + v * angle.sin()) / size, (v * angle.cos() - u * angle.sin()) / size
    radius, box = (u * u + v * v).sqrt(), torch.maximum(u.abs(), v.abs())
    # Distance to the outline, negative inside; one per class.
    outlines = torch.stack(
        [
            radius - 1,
            box - 0.9,
            torch.maximum(v, torch.maximum(0.87 * u - 0.5 * v, -0.87 * u - 0.5 * v)) - 0.6,
            torch.minimum(u.abs(), v.abs()).maximum(box - 0.7) - 0.3,
            (radius - 0.8).abs() - 0.25,
            torch.maximum((u.abs() - 0.6).abs() - 0.2, v.abs() - 0.9),
        ]
    )
    distance = outlines[labels, torch.arange(count)]
    coverage = torch.sigmoid(-distance * size * SIZE)[:, None]
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    background = 0.6 * F.interpolate(coarse, size=SIZE, mode="bilinear")
    colour = uniform(0.5, 1, 3, 1, 1)
    return background * (1 - coverage) + colour * coverage, labels


def drifts(generator: torch.Generator) -> dict[str, Callable[[Tensor], Tensor]]:
    """Kinds of drift a camera or a network brings, each a function of a batch of images."""

    def noise(images: Tensor) -> Tensor:
        return images + 0.25 * torch.randn(images.shape, generator=generator)

    return {
        "noise": noise,
        "blur": lambda images: F.avg_pool2d(images, 5, 1, 2, count_include_pad=False),
        "fog": lambda images: 0.35 * images + 0.6,
        "dark": lambda images: 0.25 * images,
        "contrast": lambda images: (images - 0.4) * 0.3 + 0.4,
        "pixelate": lambda images: F.interpolate(F.avg_pool2d(images, 4), scale_factor=4),
        "overexposed": lambda images: images * 1.6 + 0.2,
        "tint": lambda images: images * torch.tensor([1.0, 0.5, 0.25]).view(3, 1, 1) + 0.2,
    }


def small_network() -> nn.Module:
    """Build a plain convolutional network with six BatchNorm layers."""
    layers: list[nn.Module] = []
    widths = ((3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
    for before, after, stride in widths:
        layers += [
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(CLASSES)))


def train(network: nn.Module, steps: int, generator: torch.Generator) -> None:
    """Train on freshly drawn shapes."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    network.train()
    for _ in range(steps):
        images, labels = draw_shapes(BATCH, generator)
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        schedule.step()
    network.eval()


def run(steps: int = 400, batches: int = 40, seed: int = 0) -> str:
    """Train, drift, adapt and compare; returns the table of results.

    Args:
        steps: Training steps.
        batches: Batches of 64 images per stream.
        seed: Seed of everything that is random.

    Returns:
        Accuracy per method on clean images, one drift per batch, and all drifts mixed in each
        batch, with the time per batch relative to the plain model.
    """
    torch.manual_seed(seed)  # initial weights
    generator = torch.Generator().manual_seed(seed)
    network = small_network()
    train(network, steps, generator)
    kinds = list(drifts(generator).values())
    streams: dict[str, list[tuple[Tensor, Tensor]]] = {"clean": [], "one drift per batch": [], "mixed batches": []}
    for step in range(batches):
        images, labels = draw_shapes(BATCH, generator)
        kind = torch.randint(len(kinds), (BATCH, 1, 1, 1), generator=generator)
        mixed = sum(torch.where(kind == k, drift(images), 0.0) for k, drift in enumerate(kinds))
        assert isinstance(mixed, Tensor)
        for name, batch in zip(streams, (images, kinds[step % len(kinds)](images), mixed), strict=True):
            streams[name].append((batch.clamp(0, 1), labels))
    rows = []
    plain_time = 0.0
    for method in METHODS:
        accuracies = []
        started = time.perf_counter()
        for stream in streams.values():
            model = adapt(network, method)
            correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in stream)
            accuracies.append(f"{100 * correct / (batches * BATCH):.1f}")
        elapsed = time.perf_counter() - started
        plain_time = plain_time or elapsed
        rows.append([method, *accuracies, f"{elapsed / plain_time:.2f}"])
    return render(["accuracy in %", *streams, "time"], rows)
