"""A memory of domains: a description of images that tells drift from content, and clusters that follow a stream.

Which domain a sample belongs to is decided once for all layers (:func:`join_domains`). What each layer remembers
of a domain are sums of moments (:func:`remember`), which are averaged when they are used (:func:`recall`).
"""

import math
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.functional.graph_mode import exported
from findtta.functional.moments import replace_nan, widen

DESCRIPTION = 98  # numbers that describe a sample
BLOCK = 4  # side of the blocks that are transformed, in pixels
# Shares of the squared range of an image, so that a description does not depend on the unit of pixels.
LEAST_ENERGY = 1e-6  # mean energy of a frequency: about that of rounding to 8 bits
LEAST_COEFFICIENT = 1e-4  # energy of a frequency in one block
AT_THE_END = 0.004  # share of the range within which a pixel is at its end: one step of 8 bits
FEW_PIXELS = 1e-3
SMALLEST_RANGE = 1e-10
# Descriptions of images scatter by what they show, and, the fewer blocks they have, by chance.
NATURAL_BLOCKS = 64  # in the natural images whose scatter is the unit
CONTENT = 0.7  # part of their scatter that more blocks would not take away
# How these were chosen: see docs/beyond-find.md.
NEW = 0.6  # squared distance from all domains, in units of the scatter, at which a sample takes a free place
NOVEL = 2.0  # ... and at which it takes the place of the domain that was used least
CHANGED = 1.5  # squared distance of two means of samples, over that by chance, at which the domain has changed
SHARING = 6.0  # how quickly the weight of a domain falls with its squared distance from that of a sample
CHANCE = 8.0  # divergence of a single sample from the source by chance, about, over that of a drifted domain
NOTHING = 1e-6  # keeps the mean of no samples from being 0 / 0


def describe_images(images: Tensor) -> Tensor:
    """Describe how images were taken, more than what they show.

    These are their :func:`frequencies` as differences from those of natural images, shrunk along the directions in
    which natural images differ most from one another. In their unit, a natural image of this size has a squared
    distance of about 1 from the mean of all, on average.

    Args:
        images: ``(B, C, H, W)``, in any unit.

    Returns:
        Descriptions, ``(B, 98)``; not finite for an image that is not.
    """
    found = frequencies(images)
    mean, directions, shrink, unit = natural_images(found.dtype, found.device)
    found = found - mean
    blocks = max(1, images.shape[2] // BLOCK) * max(1, images.shape[3] // BLOCK)
    scatter = CONTENT + (1 - CONTENT) * NATURAL_BLOCKS / blocks
    return (found - (found @ directions.T * shrink) @ directions) / (unit * math.sqrt(scatter))


def frequencies(images: Tensor) -> Tensor:
    """Energies of the frequencies of images, and how many pixels are at the ends of their range.

    The logarithm of the mean energy, and the mean logarithm of the energy, of each frequency of the 4 x 4 block
    cosine transform of the mean of the channels and of the differences of the first and the last channel from it;
    and the logarithms of the shares of pixels at either end of the range. Another origin of the pixels changes
    nothing, and another unit adds the same to all images.

    Args:
        images: ``(B, C, H, W)``, in any unit.

    Returns:
        ``(B, 98)``; not finite for an image that is not.
    """
    images = widen(images)
    batch, _, height, width = images.shape
    if min(height, width) < BLOCK:
        images = F.pad(images, (0, max(0, BLOCK - width), 0, max(0, BLOCK - height)), mode="replicate")
        height, width = images.shape[2:]
    low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
    unit = (high - low).square().clamp_min(SMALLEST_RANGE)
    grey = images.mean(1, keepdim=True)
    planes = torch.cat([grey, images[:, :1] - grey, images[:, -1:] - grey], 1)
    planes = planes[:, :, : height // BLOCK * BLOCK, : width // BLOCK * BLOCK]
    planes = planes - planes.mean((2, 3), keepdim=True)
    blocks = F.pixel_unshuffle(planes, BLOCK).view(batch, 3, BLOCK * BLOCK, -1)
    energy = (block_transform(images.dtype, images.device) @ blocks).square_() / unit.view(-1, 1, 1, 1)
    mean_energy, log_energy = (energy.mean(3) + LEAST_ENERGY).log(), (energy + LEAST_COEFFICIENT).log().mean(3)
    step = AT_THE_END * (high - low)
    ends = [images <= (low + step).view(-1, 1, 1, 1), images >= (high - step).view(-1, 1, 1, 1)]
    at_ends = torch.stack([end.to(images.dtype).mean((1, 2, 3)) for end in ends], 1).add(FEW_PIXELS).log()
    # The range is taken out above, and its logarithm put back here.
    scale = unit.log().view(-1, 1)
    return torch.cat([mean_energy.flatten(1) + scale, log_energy.flatten(1) + scale, at_ends], 1)


def describe_moments(shift: Tensor, stretch: Tensor) -> Tensor:
    """Describe samples by their moments in a layer, where they are not images.

    Args:
        shift: Means in units of the source, ``(B, C)``.
        stretch: Standard deviations in units of the source, ``(B, C)``.

    Returns:
        Descriptions, ``(B, 98)``, of the first 49 channels; zeros where there are fewer.
    """
    moments = torch.stack([shift, stretch.log()], 2)[:, : DESCRIPTION // 2]
    return F.pad((moments / math.sqrt(moments.shape[1])).flatten(1), (0, DESCRIPTION - 2 * moments.shape[1]))


# Constants are kept on the device where they were used, so that a forward pass copies nothing to it.


@cache
@torch.inference_mode(False)
def block_transform(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The two-dimensional cosine transform of a block of pixels, row by row, ``(16, 16)``."""
    place = torch.arange(BLOCK, dtype=torch.float64)
    waves = torch.cos(math.pi * (2 * place + 1) * place[:, None] / (2 * BLOCK)) * math.sqrt(2 / BLOCK)
    waves[0] /= math.sqrt(2)
    return torch.kron(waves, waves).to(device, dtype)


@cache
@torch.inference_mode(False)
def natural_images(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Statistics of the :func:`frequencies` of natural images, made by benchmarks/natural_images.py.

    Returns:
        Their mean, ``(98,)``; directions in which they differ most, ``(16, 98)``; what share of each to leave out,
        ``(16,)``; and the unit of descriptions, a scalar.
    """
    with files("findtta.functional").joinpath("natural_images.npy").open("rb") as file:
        table = torch.from_numpy(np.load(file).astype(np.float64)).to(device, dtype)
    parts = table[0, :-1], table[1:, :-1], table[1:, -1], table[0, -1]
    mean, directions, shrink, unit = (part.clone() for part in parts)  # views would be a group in an exported file
    return mean, directions, shrink, unit


class Domains(NamedTuple):
    """What is known of domains: one row for each place, free places included.

    Attributes:
        centres: Their centres among descriptions, ``(K, D)``.
        counts: How many samples each remembers, ``(K,)``; 0 where a place is free.
        usage: How many samples joined each lately, ``(K,)``.
    """

    centres: Tensor
    counts: Tensor
    usage: Tensor


class Joined(NamedTuple):
    """Where the samples of a batch belong, and what that does to all that is remembered of domains.

    Attributes:
        kept: Share of its memory that each domain keeps, ``(K,)``; 0 for one that has just been opened.
        members: 1 where a sample belongs to a domain, ``(B, K)``; zeros for a sample that is not finite.
        weights: With which the memories of domains are averaged for a sample, ``(B, K)``; rows sum to 1, or to 0.
        chance: By how much the divergence of such an average is too large, as a share of it, ``(B,)``: the fewer
            samples it is made of, the further it is from the source by chance, and the less it is worth.
    """

    kept: Tensor
    members: Tensor
    weights: Tensor
    chance: Tensor


def join_domains(
    points: Tensor, domains: Domains, memory: float, forget: float, sizes: Tensor | None = None
) -> tuple[Domains, Joined]:
    """Let samples join the domains that they are closest to, and open new domains for those far from all.

    How far a sample is: its squared distance from a domain, divided by ``1 + 1 / count``, since the centre of few
    samples is not well known. Free places go to the samples farthest from all domains. When no place is free, a
    sample farther than ``NOVEL`` gets that of the domain used least. A domain whose newcomers have a mean farther
    from its centre than chance explains has changed: the farther they are, the less of its memory it keeps.

    Args:
        points: Descriptions of samples, ``(B, D)``, in units of their scatter within a domain.
        domains: The domains so far.
        memory: How many samples a domain remembers.
        forget: Number of samples after which the usage of a domain that no sample joins has fallen to 1 / e.
        sizes: How many samples each point stands for, ``(B,)``; 1 each by default.

    Returns:
        The domains with the samples in them, and where each sample belongs.
    """
    centres, counts, usage = domains
    usable = points.sum(1).isfinite()
    points = points.masked_fill(~usable[:, None], 0)
    changed = CHANGED if sizes is None else math.inf  # points that stand for many samples are to be added
    sizes = usable.to(points.dtype) if sizes is None else torch.where(usable, sizes, 0)
    usage = usage * torch.exp(-sizes.sum() / forget)

    target = _places_to_open(points, usable, domains._replace(usage=usage))
    # Samples that open nothing write to one row more, which is cut off.
    opened = counts.new_zeros(len(counts) + 1).index_fill(0, target, 1)[:-1].bool()
    centres = torch.cat([centres, centres[:1]]).index_put((target,), points)[:-1]
    counts, usage = counts.masked_fill(opened, 0), usage.masked_fill(opened, 0)

    nearest = _distances(points, centres, counts.masked_fill(opened, 1)).argmin(1)
    places = torch.arange(len(counts), device=counts.device)
    members = ((nearest[:, None] == places) & usable[:, None]).to(points.dtype)
    joining = members * sizes[:, None]
    added = joining.sum(0)
    newcomers = joining.T @ points / added.clamp_min(NOTHING)[:, None]
    # A centre that is off by as much as that tells as little as the mean of fewer samples would.
    apart = (newcomers - centres).square().sum(1) - changed * (1 / added + 1 / counts)
    still = 1 / (1 / counts + F.relu(apart))
    kept = replace_nan(torch.minimum(memory - added, still) / counts).clamp(0, 1)
    old = counts * kept
    counts = old + added
    moved = (centres * old[:, None] + newcomers * added[:, None]) / counts.clamp_min(1)[:, None]
    centres = torch.where((added > 0)[:, None], moved, centres)

    weights = neighbouring_domains(centres, counts)
    chance = CHANCE * replace_nan(weights.square() / counts).sum(1)
    joined = Joined(kept.masked_fill(opened, 0), members, members @ weights, members @ chance)
    return Domains(centres, counts, usage + added), joined


def neighbouring_domains(centres: Tensor, counts: Tensor) -> Tensor:
    """Weigh, for every domain, the domains that cannot yet be told from it.

    Every remembered sample counts by the squared distance of its domain, less that of the centres by chance, which
    is large for few samples. So new domains share what those around them remember, and well known ones do not.

    Args:
        centres: Centres of domains, ``(K, D)``.
        counts: How many samples each remembers, ``(K,)``.

    Returns:
        Weights, ``(K, K)``; rows sum to 1, and free places have none.
    """
    chance = 1 / counts
    apart = F.relu(_squared_distances(centres, centres) - (chance[:, None] + chance))
    return replace_nan(torch.softmax(torch.log(counts) - SHARING * apart, 1))


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    if exported():  # ONNX has no operation for it; in parts, since the table of a large batch with itself is large
        parts = zip(points.split(14, 1), centres.split(14, 1), strict=True)
        return torch.stack([(mine[:, None] - theirs).square().sum(2) for mine, theirs in parts]).sum(0)
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").square()


def _distances(points: Tensor, centres: Tensor, counts: Tensor) -> Tensor:
    """How far samples are from domains, ``(B, K)``; infinitely far from free places."""
    distances = _squared_distances(points, centres) / (1 + 1 / counts)
    return distances.masked_fill(counts == 0, math.inf)


def _places_to_open(points: Tensor, usable: Tensor, domains: Domains) -> Tensor:
    """The place that each sample opens a domain at, ``(B,)``; the number of places for one that opens none."""
    far = _distances(points, domains.centres, domains.counts).amin(1).masked_fill(~usable, -1)
    between = _squared_distances(points, points) / 2  # a pair of samples has twice the scatter of one
    order = torch.arange(points.shape[0], device=points.device)
    earlier = order < order[:, None]

    def first_beyond(limit: float) -> Tensor:
        """Samples that are farther than the limit, and are not close to such a sample before them."""
        beyond = far > limit
        return beyond & ~(earlier & beyond & (between < limit)).any(1)

    new, novel = first_beyond(NEW), first_beyond(NOVEL)
    # Farthest first, to free places first, then to those used least.
    rank = torch.where(new, far, -2).argsort(descending=True, stable=True).argsort()
    unused = domains.counts == 0
    least_used = domains.usage.masked_fill(unused, -1).argsort(stable=True)
    places, free = len(least_used), unused.sum()
    opens = new & ((rank < free) | novel) & (rank < places)
    return torch.where(opens, least_used[rank.clamp(max=places - 1)], places)


def remember(table: Tensor, sums: Tensor, joined: Joined) -> Tensor:
    """Add the samples of a batch to what is remembered of their domains.

    Args:
        table: What to remember of each sample, ``(B, F)``, and NaN for a sample that does not count.
        sums: Sums over the samples that each domain remembers, and their number, ``(K, F + 1)``.
        joined: Where the samples belong.

    Returns:
        The sums with the samples in them.
    """
    usable = table[:, :1].isfinite().to(table.dtype)
    return torch.addmm(joined.kept[:, None] * sums, joined.members.T, torch.cat([replace_nan(table), usable], 1))


def recall(sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Average what is remembered of domains, for every sample.

    Args:
        sums: As :func:`remember` returns them, ``(K, F + 1)``.
        weights: Of the domains, ``(B, K)``.

    Returns:
        Averages, ``(B, F)``, over the domains that remember anything, and the weight of these, ``(B, 1)``.
    """
    means = sums / sums[:, -1:].clamp_min(NOTHING)  # the last one is 1, or 0 where nothing is remembered
    averages = weights @ means
    known = averages[:, -1:]
    return averages[:, :-1] / known.clamp_min(NOTHING), known
