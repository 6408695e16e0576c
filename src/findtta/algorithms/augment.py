"""The strong augmentation of RoTTA and ViDA, as a function of explicit draws.

One draw is shared by the whole batch: colour jitter in random order, edge padding, a random affine
map, Gaussian blur, centre crop, horizontal flip and noise. :func:`draw_augmentation` draws,
:func:`augment` computes; nothing here keeps state. Images are RGB or grey, in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.errors import InputError

JITTERS = ("brightness", "contrast", "saturation", "hue", "gamma")
LOWEST_FACTORS = (0.6, 0.7, 0.5, -0.06, 0.7)
HIGHEST_FACTORS = (1.4, 1.3, 1.5, 0.06, 1.3)
LARGEST_ANGLE = 15.0  # degrees
LARGEST_SHIFT = 1 / 16  # of the padded image
SCALES = (0.9, 1.1)
BLUR_RADIUS = 2
BLUR_SIGMAS = (0.001, 0.5)
FLIP_PROBABILITY = 0.5
NOISE_STD = 0.005
SMALLEST_BASE = 1e-8  # the slope of a power is infinite at 0
GREY_WEIGHTS = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation:
    """One draw of everything random in :func:`augment`."""

    jitter_order: tuple[int, ...]  # in which order the JITTERS are applied
    jitter_factors: tuple[float, ...]  # strength of each of the JITTERS
    angle: float  # in degrees, clockwise
    shift: tuple[int, int]  # in pixels, right and down
    scale: float
    blur_sigma: float  # in pixels
    flip: bool
    noise: Tensor | None = None  # added in the end, of the shape of the images


def draw_augmentation(images: Tensor, generator: torch.Generator) -> Augmentation:
    """Draw one augmentation for a batch of images, ``(B, C, H, W)``."""
    noise = NOISE_STD * torch.randn(images.shape, generator=generator, device=generator.device)
    order = torch.randperm(len(JITTERS), generator=generator, device=generator.device).tolist()
    # All other draws in one transfer: five jitters, angle, two shifts, scale, blur and flip.
    unit: list[float] = torch.rand(
        len(JITTERS) + 6, generator=generator, device=generator.device, dtype=torch.float64
    ).tolist()

    def between(low: float, high: float) -> float:
        return low + (high - low) * unit.pop()

    height, width = (side + 2 * (side // 2) for side in images.shape[-2:])
    return Augmentation(
        jitter_order=tuple(order),
        jitter_factors=tuple(map(between, LOWEST_FACTORS, HIGHEST_FACTORS)),
        angle=between(-LARGEST_ANGLE, LARGEST_ANGLE),
        shift=(
            round(between(-LARGEST_SHIFT * width, LARGEST_SHIFT * width)),
            round(between(-LARGEST_SHIFT * height, LARGEST_SHIFT * height)),
        ),
        scale=between(*SCALES),
        blur_sigma=between(*BLUR_SIGMAS),
        flip=between(0, 1) < FLIP_PROBABILITY,
        noise=noise.to(images.device, images.dtype),
    )


def augment(images: Tensor, draw: Augmentation) -> Tensor:
    """Apply one augmentation to RGB or grey images in [0, 1], ``(B, C, H, W)``; values outside are clipped."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(
            f"images must have the shape (B, 3, H, W) or (B, 1, H, W) to be augmented, got "
            f"{tuple(images.shape)}. Pass a function of your own as the option 'view'."
        )
    height, width = images.shape[-2:]
    top, left = height // 2, width // 2
    images = jitter(images.clamp(0, 1), draw.jitter_order, draw.jitter_factors)
    images = F.pad(images, (left, left, top, top), mode="replicate")
    images = affine(images, draw.angle, draw.shift, draw.scale)
    images = blur(images, draw.blur_sigma)
    images = images[..., top : top + height, left : left + width]
    if draw.flip:
        images = images.flip(-1)
    if draw.noise is not None:
        images = images + draw.noise
    return images.clamp(0, 1)


def jitter(images: Tensor, order: tuple[int, ...], factors: tuple[float, ...]) -> Tensor:
    """Change brightness, contrast, saturation, hue and gamma of ``(B, C, H, W)``, in the given order."""
    for index in order:
        name, factor = JITTERS[index], factors[index]
        if name == "brightness":
            images = (images * factor).clamp(0, 1)
        elif name == "contrast":
            images = _mix(images, grey(images).mean((-3, -2, -1), keepdim=True), factor)
        elif name == "saturation":
            images = _mix(images, grey(images), factor)
        elif name == "hue":
            images = shift_hue(images, factor)
        else:
            images = images.clamp(SMALLEST_BASE, 1).pow(factor).clamp(0, 1)
    return images


def grey(images: Tensor) -> Tensor:
    """Return the luma of RGB images, ``(B, 1, H, W)``; grey images are their own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (GREY_WEIGHTS[0] * red + GREY_WEIGHTS[1] * green + GREY_WEIGHTS[2] * blue).unsqueeze(1)


def _mix(images: Tensor, other: Tensor, factor: float) -> Tensor:
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def shift_hue(images: Tensor, turns: float) -> Tensor:
    """Turn the hue of RGB images by a part of the colour circle, keeping value and saturation."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    # Which sixth of the circle, counted from the channel that is largest (red first, then green).
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = (hue + 6 * turns) % 6

    def channel(offset: float) -> Tensor:
        # How far a channel is below the value: nothing for two sixths around its own, all opposite to them.
        k = (sixths + offset) % 6
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], 1)


def affine(images: Tensor, angle: float, shift: tuple[int, int], scale: float) -> Tensor:
    """Rotate (degrees, clockwise), magnify and shift images about their centre; black beyond the edge."""
    height, width = images.shape[-2:]
    cosine, sine = math.cos(math.radians(angle)) / scale, math.sin(math.radians(angle)) / scale
    x = torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2 - shift[0]
    y = torch.arange(height, dtype=images.dtype, device=images.device)[:, None] - (height - 1) / 2 - shift[1]
    # Where each output pixel comes from, in pixels from the centre, then in halves of the image.
    source_x = (cosine * x + sine * y) * (2 / width)
    source_y = (cosine * y - sine * x) * (2 / height)
    grid = torch.stack([source_x, source_y], -1).expand(len(images), -1, -1, -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blur(images: Tensor, sigma: float) -> Tensor:
    """Blur images with a Gaussian of five taps, reflecting at the edge."""
    taps = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-BLUR_RADIUS, BLUR_RADIUS + 1)]
    kernel = images.new_tensor(taps) / math.fsum(taps)
    channels = images.shape[1]
    padded = F.pad(images, (BLUR_RADIUS,) * 4, mode="reflect")
    rows = F.conv2d(padded, kernel.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)
    return F.conv2d(rows, kernel.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)
