"""Augmented views of the inputs, for methods that learn to predict the same for all of them.

The strong augmentation of CoTTA, RoTTA and ViDA is a function of explicit draws, shared by the whole batch: colour
jitter in random order, edge padding, a random affine map, Gaussian blur, centre crop, horizontal flip and noise.
ROID's is milder: no blur, no noise, and images are mirrored at their edges.
:func:`draw_augmentation` draws, :func:`augment` computes. Images are RGB or grey, in [0, 1].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.algorithms.learning import GradientAdapted
from findtta.algorithms.presets import GradientOptions
from findtta.errors import InputError, OptionError
from findtta.options import Number, Options, Positive, Seed, option, require_choice

JITTERS = ("brightness", "contrast", "saturation", "hue", "gamma")
FACTORS = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))  # the lowest and the highest of each
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
class ViewOptions(GradientOptions):
    """Options of every method that augments its inputs."""

    view: str | Callable[[Tensor], Tensor] = option(
        "strong", "augmentation of the inputs: 'strong', 'flip', or a function from inputs to inputs"
    )
    mean: tuple[Number, ...] | None = option(
        None, "channel means that the inputs were normalised with; None if inputs are images in [0, 1]"
    )
    std: tuple[Positive, ...] | None = option(
        None, "channel standard deviations that the inputs were normalised with; None likewise"
    )
    legacy_clip: bool = option(
        False, "augment normalised inputs without undoing the normalisation, clipped to [0, 1], as TTAB does"
    )
    seed: Seed = option(0, "seed of the random augmentations")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.view):
            require_choice("view", self.view, "strong", "flip")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise OptionError(
                "mean and std must be given together, with one number per channel each, got "
                f"{self.mean!r} and {self.std!r}."
            )


class Augmenting(GradientAdapted):
    """A model that learns from augmented views of its inputs."""

    options_type: ClassVar[type[Options]] = ViewOptions
    #: Whether views are without blur and noise, and mirrored at the edges of the images.
    mild_views: ClassVar[bool] = False

    @torch.no_grad()
    def augmented(self, inputs: Tensor) -> Tensor:
        """Return a view of the inputs, as the options say; one random draw for the whole batch."""
        view = self.options.view
        if callable(view):
            return view(inputs)
        if view == "flip":
            return inputs.flip(-1)
        if self.options.mean is None or self.options.legacy_clip:
            return self._augment(inputs)
        if inputs.ndim != 4 or inputs.shape[1] != len(self.options.mean):
            raise InputError(
                f"inputs must have the shape (B, {len(self.options.mean)}, H, W) to go with the option 'mean', "
                f"got {tuple(inputs.shape)}. Pass one number per channel."
            )
        mean = inputs.new_tensor(self.options.mean).view(-1, 1, 1)
        std = inputs.new_tensor(self.options.std).view(-1, 1, 1)
        images = inputs * std + mean
        return (self._augment(images) - mean) / std

    def _augment(self, images: Tensor) -> Tensor:
        return augment(images, draw_augmentation(images, self.generator, mild=self.mild_views))


@dataclass(frozen=True)
class Augmentation:
    """One draw of everything random in :func:`augment`."""

    jitter_order: tuple[int, ...]  # in which order the JITTERS are applied
    jitter_factors: tuple[float, ...]  # strength of each of the JITTERS
    angle: float  # in degrees, clockwise
    shift: tuple[int, int]  # in pixels, right and down
    scale: float
    blur_sigma: float | None  # in pixels
    flip: bool
    noise: Tensor | None = None  # added in the end, of the shape of the images
    padding: str = "replicate"  # what surrounds the images when they are moved: a mode of torch


def draw_augmentation(images: Tensor, generator: torch.Generator, *, mild: bool = False) -> Augmentation:
    """Draw one augmentation for a batch of images, ``(B, C, H, W)``, from a generator on the CPU."""
    noise = None if mild else NOISE_STD * torch.randn(images.shape, generator=generator)
    order = torch.randperm(len(JITTERS), generator=generator).tolist()
    # Five jitters, angle, two shifts, scale, blur and flip.
    unit: list[float] = torch.rand(len(JITTERS) + 6, generator=generator, dtype=torch.float64).tolist()

    def between(low: float, high: float) -> float:
        return low + (high - low) * unit.pop()

    height, width = (side + 2 * (side // 2) for side in images.shape[-2:])
    return Augmentation(
        jitter_order=tuple(order),
        jitter_factors=tuple(between(*bounds) for bounds in FACTORS),
        angle=between(-LARGEST_ANGLE, LARGEST_ANGLE),
        shift=(
            round(between(-LARGEST_SHIFT * width, LARGEST_SHIFT * width)),
            round(between(-LARGEST_SHIFT * height, LARGEST_SHIFT * height)),
        ),
        scale=between(*SCALES),
        blur_sigma=None if mild else between(*BLUR_SIGMAS),
        flip=between(0, 1) < FLIP_PROBABILITY,
        noise=None if noise is None else noise.to(images.device, images.dtype),
        padding="reflect" if mild else "replicate",
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
    images = F.pad(images, (left, left, top, top), mode=draw.padding)
    images = affine(images, draw.angle, draw.shift, draw.scale)
    if draw.blur_sigma is not None:
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
