"""How sure an accuracy, or a difference of two, is: 95% intervals clustered by image.

The same image under fifteen corruptions is not fifteen independent samples: a model that recognizes it in one form
tends to recognize it in the others. So samples of one image are one cluster, over all domains, rounds and seeds,
and the standard error is that of the clusters (the sandwich estimator of a mean). Two methods that saw the same
samples are compared sample by sample, which cancels what makes an image easy or hard for both.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Scores:
    """A number for each sample of a run, sorted by image: 1 if its prediction is right, or a difference of two."""

    images: NDArray[np.int64]  # the image that each sample shows, (n,); ascending
    values: NDArray[np.int8]  # (n,)

    @classmethod
    def sort(cls, images: NDArray[Any], domains: NDArray[Any], correct: NDArray[Any]) -> Self:
        """Return what was correct along a stream, sorted by image, then domain, then time."""
        order = np.lexsort((domains, images))  # stable, so time comes last
        return cls(np.asarray(images, np.int64)[order], np.asarray(correct, np.int8)[order])

    @classmethod
    def join(cls, parts: "Sequence[Scores]") -> Self:
        """Return the scores of several runs as those of one; equal numbers are taken for the same image."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "values")))

    def minus(self, other: "Scores") -> "Scores | None":
        """Return the difference sample by sample, or None if the runs did not see the same samples."""
        if not np.array_equal(self.images, other.images):
            return None
        return Scores(self.images, self.values - other.values)

    def encode(self) -> dict[str, str]:
        """Return the scores of a run as two short texts: differences of image numbers, and bits."""
        steps = np.diff(self.images, prepend=0).astype("<u4")
        parts = {"images": zlib.compress(steps.tobytes(), 9), "correct": np.packbits(self.values > 0).tobytes()}
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}

    @classmethod
    def decode(cls, texts: Mapping[str, str]) -> Self:
        """Return what :meth:`encode` was given; ``ValueError`` if the texts are damaged."""
        images, correct = (base64.b64decode(texts[name], validate=True) for name in ("images", "correct"))
        try:
            steps = np.frombuffer(zlib.decompress(images), "<u4").astype(np.int64)
        except zlib.error as error:
            raise ValueError(f"samples cannot be decompressed: {error}") from error
        if len(correct) != math.ceil(len(steps) / 8):
            raise ValueError(f"samples have {len(steps)} images, but {len(correct)} bytes of correct ones.")
        bits = np.unpackbits(np.frombuffer(correct, np.uint8), count=len(steps))
        return cls(steps.cumsum(), bits.astype(np.int8))


@dataclass(frozen=True)
class Interval:
    """A mean in per cent, or in points for a difference, and half of the width of its 95% interval."""

    mean: float
    margin: float  # infinite where a single image tells nothing about others

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.margin

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.margin

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval is on one side of 0."""
        return abs(self.mean) > self.margin

    def text(self, decimals: int = 1) -> str:
        """Return a difference with its interval, such as ``"+1.9 [0.4, 3.4]"``."""
        if not math.isfinite(self.margin):
            return f"{self.mean:+.{decimals}f}"
        return f"{self.mean:+.{decimals}f} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"


def interval(scores: Iterable[Scores]) -> Interval:
    """Return the mean of all scores, such as those of several seeds, with its interval clustered by image.

    With ``n_c`` samples and the sum of scores ``s_c`` of each of the ``G`` images, and the mean ``m`` of all ``N``
    samples, the squared standard error is ``G / (G - 1) * sum((s_c - m n_c)^2) / N^2``; the quantile is Student's
    with ``G - 1`` degrees of freedom.
    """
    joined = Scores.join(list(scores))
    values = joined.values.astype(np.float64)
    _, cluster, sizes = np.unique(joined.images, return_inverse=True, return_counts=True)
    sums = np.bincount(cluster, weights=values)
    count, mean = len(sizes), values.mean()
    if count < 2:
        return Interval(100 * mean, math.inf)
    error = math.sqrt(count / (count - 1) * np.square(sums - mean * sizes).sum()) / len(values)
    return Interval(100 * mean, 100 * student_quantile(count - 1) * error)


def difference(own: Mapping[int, Scores], other: Mapping[int, Scores]) -> Interval | None:
    """Return by how many points one method is ahead of another, or None if a seed of either cannot be paired."""
    if not own or set(own) != set(other):
        return None
    pairs = [own[seed].minus(other[seed]) for seed in own]
    found = [pair for pair in pairs if pair is not None]
    return interval(found) if len(found) == len(pairs) else None


def student_quantile(freedom: int) -> float:
    """Return the two-sided 95% quantile of Student's t distribution, by its expansion around the normal one.

    It is exact to a thousandth from six degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
