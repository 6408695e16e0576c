"""What is known of natural images: the directions in which descriptions of clean images differ most.

Writes the constants that ``findtta.functional.domains.describe_images`` reads; those of the package were made of
4,000 training images each of CIFAR-10 and CIFAR-100 (folders of images by class)::

    python benchmarks/natural_images.py cifar10/train cifar100/train \
        --output src/findtta/functional/natural_images.npy
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from findtta.functional.domains import frequencies
from findtta.images import read_image, to_input

RANK = 16  # directions kept
RIDGE = 0.3  # scatter in a direction, as a multiple of the mean over all, that is left as it is


def main() -> None:
    """Read images, and write what they have in common."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=4000, help="per folder, drawn (default: 4000)")
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    found = []
    for folder in arguments.folders:
        paths = np.random.default_rng(0).permutation(sorted(folder.rglob("*.png")))[: arguments.images]
        images = np.stack([read_image(path) for path in paths])
        found += [frequencies(part.double()) for part in to_input(images, torch.device("cpu")).split(500)]
    np.save(arguments.output, natural_table(torch.cat(found)))


def natural_table(found: torch.Tensor) -> np.ndarray:
    """Return the table of constants from the frequencies of images, ``(N, 98)``."""
    centred = found - found.mean(0)
    scatter, directions = torch.linalg.eigh(centred.T @ centred / len(found))
    unit = RIDGE * scatter.mean()
    scatter, directions = scatter.flip(0)[:RANK], directions.T.flip(0)[:RANK]
    shrink = 1 - (unit / (scatter + unit)).sqrt()
    rest = centred - (centred @ directions.T * shrink) @ directions
    table = torch.zeros(RANK + 1, found.shape[1] + 1)
    table[0, :-1], table[0, -1] = found.mean(0), rest.square().sum(1).mean().sqrt()
    table[1:, :-1], table[1:, -1] = directions, shrink
    return table.numpy().astype(np.float16)


if __name__ == "__main__":
    main()
