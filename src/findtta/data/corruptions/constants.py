"""The constants of the corruptions for severities 1 to 5: for 32-pixel images and for 224-pixel photos.

They are those of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, 2019). Lengths are in pixels and do
not grow with the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Constants = float | int | tuple[float, ...]


def zooms(count: int, step: float) -> tuple[float, ...]:
    """The zoom factors 1, 1 + step, ...; a count, since float rounding decides about the end of a range."""
    exact_step = (1 + step) - 1  # as a range of floats that starts at 1 sees it
    return tuple(1 + exact_step * position for position in range(count))


def elastic(side: int, *rows: tuple[float, float, float]) -> tuple[tuple[float, ...], ...]:
    """Displacement, smoothness and shift of the anchors, given as parts of a side."""
    return tuple(tuple(side * value for value in row) for row in rows)


# Where a corruption has several constants they are, in this order:
#   glass_blur         sigma, reach of a swap, iterations
#   defocus_blur       radius of the disk, sigma that smooths its rim
#   motion_blur        radius, sigma
#   zoom_blur          all zoom factors
#   snow               mean, std, zoom, threshold, blur radius, blur sigma, weight of the image
#   frost              weight of the image, weight of the frost, pixels of ice per pixel of the image
#   fog                strength, decay of the roughness
#   saturate           factor, summand
#   elastic_transform  displacement, smoothness, shift of the anchors
#   spatter            mean, std, sigma, threshold, strength or smoothness of mud, 1 if mud
_CIFAR: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": (zooms(7, 0.01), zooms(12, 0.01), zooms(16, 0.01), zooms(21, 0.01), zooms(26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": elastic(
        32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
    "speckle_noise": (0.06, 0.10, 0.12, 0.16, 0.20),
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

_IMAGENET: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": (zooms(12, 0.01), zooms(16, 0.01), zooms(11, 0.02), zooms(13, 0.02), zooms(11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    # 244 for a 224-pixel image is a slip of the benchmark, whose published data have it.
    "elastic_transform": elastic(
        244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": (25, 18, 15, 10, 7),
    "speckle_noise": (0.15, 0.20, 0.35, 0.45, 0.60),
    "gaussian_blur": (1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

#: The tables by name: corruption to its constants, one entry per severity.
TABLES: Mapping[str, Mapping[str, tuple[Constants, ...]]] = MappingProxyType(
    {"cifar": MappingProxyType(_CIFAR), "imagenet": MappingProxyType(_IMAGENET)}
)

#: Images whose shorter side is below this get the CIFAR constants unless told otherwise.
IMAGENET_FROM = 96


def default_table(height: int, width: int) -> str:
    """Return the name of the table meant for images of a size."""
    return "cifar" if min(height, width) < IMAGENET_FROM else "imagenet"


def constants_for(table: str, name: str, severity: int) -> tuple[float, ...]:
    """Return the constants of one corruption at one severity, as a tuple also where there is but one."""
    constants = TABLES[table][name][severity - 1]
    return constants if isinstance(constants, tuple) else (constants,)
