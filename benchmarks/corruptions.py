"""What corruptions cost: milliseconds per image, beside the generator that made the published data.

    python benchmarks/corruptions.py                      32-pixel images, as many threads as PyTorch takes
    python benchmarks/corruptions.py --threads 1 --severity 3
    python benchmarks/corruptions.py --size 224 --images 16

The images are smooth noise, since no corruption but JPEG works faster on some than on others. Tables that
are made once per process are made before the clock starts. Run it alone: a second busy process distorts
every number here.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from harness import interleave

from findtta.data import randomness
from findtta.data.corruptions import corrupt
from findtta.data.dataset import EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, Images
from findtta.tables import render

#: The published generator on one core, ms per 32-pixel image at severity 5; not measured by this script.
REFERENCE = {
    "gaussian_noise": 0.1,
    "shot_noise": 0.25,
    "impulse_noise": 0.1,
    "defocus_blur": 0.25,
    "glass_blur": 14.7,
    "motion_blur": 2.2,
    "zoom_blur": 6.0,
    "snow": 2.1,
    "frost": 6.8,
    "fog": 0.45,
    "brightness": 0.6,
    "contrast": 0.1,
    "elastic_transform": 0.65,
    "pixelate": 0.05,
    "jpeg_compression": 0.2,
}
REFERENCE_SIZE = 32


def smooth_images(count: int, size: int) -> Images:
    """Return images with structure at several scales."""
    keys = randomness.sample_keys(0, np.arange(count), "smooth images")
    coarse = randomness.integers(keys, 0, 256, 1 + size // 8, 1 + size // 8, 3)
    blocks = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :size, :size]
    return ((blocks + np.roll(blocks, 3, axis=1) + np.roll(blocks, 3, axis=2)) // 3).astype(np.uint8)


def measure(images: Images, severity: int, threads: int, rounds: int) -> dict[str, float]:
    """Return milliseconds per image by corruption, the best of some rounds."""

    def call(name: str) -> object:
        return corrupt(images, name, severity, threads=threads)

    functions = {name: lambda name=name: call(name) for name in (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    times = interleave(functions, rounds)
    return {name: 1e3 * min(seconds) / len(images) for name, seconds in times.items()}


def main() -> None:
    """Measure what the command line asks for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--size", type=int, default=REFERENCE_SIZE, help="side of the images in pixels")
    parser.add_argument("--images", type=int, default=512, help="how many images to corrupt in one call")
    parser.add_argument("--severity", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    images = smooth_images(arguments.images, arguments.size)
    ours = measure(images, arguments.severity, arguments.threads, arguments.rounds)
    compared = arguments.size == REFERENCE_SIZE
    rows = []
    for name, milliseconds in ours.items():
        reference = REFERENCE.get(name) if compared else None
        ratio = None if reference is None else f"{reference / milliseconds:.1f}"
        rows.append([name, f"{milliseconds:.3f}", reference, ratio])
    all_main = sum(ours[name] for name in MAIN_CORRUPTIONS)
    reference_sum = sum(REFERENCE.values())
    rows.append(
        [
            "the fifteen of the benchmark",
            f"{all_main:.3f}",
            f"{reference_sum:.1f}",
            f"{reference_sum / all_main:.1f}",
        ]
        if compared
        else ["the fifteen of the benchmark", f"{all_main:.3f}", None, None]
    )
    print(
        f"{len(images)} images of {arguments.size} x {arguments.size}, severity {arguments.severity}, "
        f"{arguments.threads} threads; the reference has one core\n"
    )
    print(render(["corruption", "ms per image", "reference ms", "times faster"], rows))


if __name__ == "__main__":
    main()
