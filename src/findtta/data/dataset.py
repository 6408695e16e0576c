"""What every dataset of the benchmark offers: images of several domains under one set of classes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta.errors import InputError, OptionError, UnknownNameError, close_matches, few
from findtta.images import Preprocessing
from findtta.options import require_int
from findtta.plugins import public_name

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]

CLEAN = "clean"

#: The fifteen corruptions in the order of the benchmark, then the four extra ones.
MAIN_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
#: Two corruptions on one image: one pair for every two of the families weather, blur, noise and digital, in the
#: order in which light, lens, sensor and file would apply them.
PAIRED_CORRUPTIONS = (
    "snow+motion_blur", "fog+gaussian_noise", "frost+pixelate",
    "defocus_blur+shot_noise", "zoom_blur+contrast", "impulse_noise+jpeg_compression",
)  # fmt: skip
ALL_CORRUPTIONS = (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)
SEVERITIES = (1, 2, 3, 4, 5)


def are_images(array: Any) -> bool:
    """Tell whether an array, or what describes one, is of images: uint8, (n, height, width, 3)."""
    return bool(array.dtype == np.uint8 and len(array.shape) == 4 and array.shape[3] == 3)


def describe(array: object) -> str:
    """Return what an array is, for errors."""
    if hasattr(array, "shape") and hasattr(array, "dtype"):
        return f"shape {tuple(array.shape)} and type {array.dtype}"
    return f"a {type(array).__name__}"


def domain_name(corruption: str, severity: int) -> str:
    """Return the name of a domain that has a severity, such as ``"fog@5"``."""
    return f"{corruption}@{severity}"


def split_domain(domain: str) -> tuple[str, int | None]:
    """Return the kind of a domain and its severity: ``"fog@5"`` is ``("fog", 5)``, ``"sketch"`` has none."""
    kind, _, severity = domain.rpartition("@")
    return (kind, int(severity)) if kind and severity.isdigit() else (domain, None)


class DomainDataset(ABC):
    """Images of several domains under one set of classes.

    A sample is a domain and a row in it. Images are uint8 arrays of shape (n, height, width, 3); they are
    read (or made) when asked for, so that no more than a batch of them is in memory.
    """

    name: str  # what tables call the dataset
    domains: tuple[str, ...]  # their names; ``"fog@5"`` for a corruption with a severity
    classes: tuple[str, ...]  # their names, in the order of the labels
    image_size: tuple[int, int]  # height and width
    generated: bool = False  # whether the drift was made by this package rather than published with the data
    encoded: bool = False  # whether images are decoded from files when they are asked for
    preprocessing: Preprocessing | None = None  # how image files were brought to one size, if they were

    @abstractmethod
    def labels(self, domain: str) -> Labels:
        """Return the labels of all rows of a domain."""

    @abstractmethod
    def images(self, domain: str, rows: Rows) -> Images:
        """Return the images of some rows of a domain, in the order asked for."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of samples of each domain."""
        return np.array([len(self.labels(domain)) for domain in self.domains], np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __repr__(self) -> str:
        height, width = self.image_size
        return (
            f"{type(self).__name__}({self.name!r}, {len(self)} images of {height}x{width}, "
            f"{len(self.domains)} domains, {len(self.classes)} classes)"
        )

    def check_domain(self, domain: str) -> None:
        """Raise an error that helps if there is no such domain."""
        if domain not in self.domains:
            raise UnknownNameError(
                f"domain: {self.name} has no {domain!r}.{close_matches(domain, self.domains)} "
                f"It has {few(self.domains, 20)}."
            )

    def batch(self, domain_ids: Rows, rows: Rows) -> tuple[Images, Labels]:
        """Return the images and labels of samples, given by the position of their domain and their row in it."""
        images = np.empty((len(rows), *self.image_size, 3), np.uint8)
        labels = np.empty(len(rows), np.int64)
        for domain_id in np.unique(domain_ids):
            domain = self.domains[domain_id]
            where = np.flatnonzero(domain_ids == domain_id)
            images[where] = self.images(domain, rows[where])
            labels[where] = self.labels(domain)[rows[where]]
        return images, labels

    def image_numbers(self, domain_ids: Rows, rows: Rows) -> Rows:
        """Return a number for the image that each sample shows, given as for :meth:`batch`.

        Domains with the same labels are taken for copies of one set of images, as corrupted ones are: there a row
        has the same number in all of them.
        """
        offsets: dict[bytes, int] = {}
        next_offset, starts = 0, []
        for labels in map(self.labels, self.domains):
            start = offsets.setdefault(labels.tobytes(), next_offset)
            next_offset = max(next_offset, start + len(labels))
            starts.append(start)
        return np.array(starts, np.int64)[domain_ids] + rows

    @cached_property
    def identity(self) -> str:
        """A digest of all labels, of a few images of every domain and of the preprocessing; not of the place."""
        digest = hashlib.sha256()
        digest.update(repr((self.domains, self.classes, self.image_size)).encode())
        if self.preprocessing is not None:
            digest.update(repr(self.preprocessing).encode())
        for domain in self.domains:
            labels = self.labels(domain)
            digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
            if len(labels):
                rows = np.unique(np.linspace(0, len(labels) - 1, 3).astype(np.int64))
                digest.update(self.images(domain, rows).tobytes())
        return digest.hexdigest()[:16]

    def extended(self, kinds: Sequence[str]) -> DomainDataset:
        """Return the dataset with domains of more corruptions, if it makes its drift on the fly; else itself."""
        return self

    def pick(
        self,
        domains: Sequence[str] | None = None,
        severity: int | Sequence[int] = 5,
        limit: int | None = None,
        seed: int = 0,
    ) -> DomainDataset:
        """Return the part of the dataset that a stream is made of: some domains, and perhaps only some images.

        Args:
            domains: Names such as ``"fog@3"``, ``"fog"`` (at the severities asked for), or ``"clean"``, and where
                drift is made on the fly also ``"fog+snow"`` (both on each image) or ``"mine.py:haze"``. By default
                the fifteen corruptions of the benchmark, or all domains of a dataset without them.
            severity: The severity, or severities, of the names that do not say theirs.
            limit: The largest number of images per domain, drawn at random and alike for all domains.
            seed: Seed of that draw.
        """
        severities = (severity,) if isinstance(severity, int) else tuple(severity)
        unknown = {split_domain(name)[0] for name in set(domains or ()).difference(self.domains)}
        if others := unknown.difference(split_domain(domain)[0] for domain in self.domains):
            whole = self.extended(sorted(others))
            if whole is not self:
                return whole.pick([public_name(name) for name in domains or ()], severities, limit, seed)
        known = set(self.domains)
        if domains is None:
            kinds = {split_domain(domain)[0] for domain in self.domains}
            main = [kind for kind in MAIN_CORRUPTIONS if kind in kinds]
            domains = main or list(self.domains)
        chosen: list[str] = []
        for wanted in domains:
            alone = wanted in known or split_domain(wanted)[1] is not None
            names = [wanted] if alone else [domain_name(wanted, level) for level in severities]
            for name in names:
                self.check_domain(name)
            chosen += [name for name in names if name not in chosen]
        if not chosen:
            raise OptionError("domains must name at least one domain, but the list is empty.")
        if limit is not None:
            require_int("limit", limit)
        return _Part(self, tuple(chosen), limit, seed)


class _Part(DomainDataset):
    """Some domains of a dataset, and perhaps only some of their rows, or labels in the order of other classes."""

    def __init__(
        self,
        whole: DomainDataset,
        domains: tuple[str, ...],
        limit: int | None = None,
        seed: int = 0,
        classes: tuple[str, ...] | None = None,
        first: int = 0,
    ) -> None:
        self.whole, self.limit, self.seed, self.domains, self.first = whole, limit, seed, domains, first
        self.name, self.classes, self.image_size = whole.name, classes or whole.classes, whole.image_size
        self.generated, self.encoded, self.preprocessing = whole.generated, whole.encoded, whole.preprocessing
        self._classes = classes
        places = {name: label for label, name in enumerate(self.classes)}
        self._label_of = np.array([places[name] for name in whole.classes], np.int64) if classes else None

    def labels(self, domain: str) -> Labels:
        labels = self.whole.labels(domain)[self._rows(domain)]
        return labels if self._label_of is None else self._label_of[labels]

    def images(self, domain: str, rows: Rows) -> Images:
        return self.whole.images(domain, self._rows(domain)[rows])

    def extended(self, kinds: Sequence[str]) -> DomainDataset:
        whole = self.whole.extended(kinds)
        if whole is self.whole or len(self.domains) < len(self.whole.domains):  # a part has no others
            return self
        return _Part(whole, whole.domains, self.limit, self.seed, self._classes, self.first)

    def _rows(self, domain: str) -> Rows:
        return _drawn(len(self.whole.labels(domain)), self.limit, self.seed, self.first)

    def image_numbers(self, domain_ids: Rows, rows: Rows) -> Rows:
        places = np.array([self.whole.domains.index(domain) for domain in self.domains])
        chosen = np.empty(len(rows), np.int64)
        for domain_id in np.unique(domain_ids):
            where = domain_ids == domain_id
            chosen[where] = self._rows(self.domains[domain_id])[rows[where]]
        return self.whole.image_numbers(places[domain_ids], chosen)


class HeldDataset(DomainDataset):
    """A dataset that keeps in memory what was read or made of it, for several runs on the same images."""

    def __init__(self, whole: DomainDataset) -> None:
        self.whole = whole
        self.name, self.domains, self.classes = whole.name, whole.domains, whole.classes
        self.image_size, self.generated, self.preprocessing = (
            whole.image_size,
            whole.generated,
            whole.preprocessing,
        )
        self._held: dict[str, tuple[Images, NDArray[np.bool_]]] = {}

    def labels(self, domain: str) -> Labels:
        return self.whole.labels(domain)

    def images(self, domain: str, rows: Rows) -> Images:
        if domain not in self._held:
            count = len(self.labels(domain))
            self._held[domain] = np.empty((count, *self.image_size, 3), np.uint8), np.zeros(count, np.bool_)
        images, known = self._held[domain]
        if len(missing := np.unique(rows[~known[rows]])):
            images[missing] = self.whole.images(domain, missing)
            known[missing] = True
        return images[rows]

    def image_numbers(self, domain_ids: Rows, rows: Rows) -> Rows:
        return self.whole.image_numbers(domain_ids, rows)


def match_classes(
    dataset: DomainDataset,
    names: tuple[str, ...] | None,
    count: int,
    *,
    given: bool = False,
    other: str = "the model",
) -> tuple[DomainDataset, str]:
    """Bring the labels of a dataset into the order of the classes of a model, or of another dataset.

    Classes are matched by their names, of which the data may have a part. Names that are numbers are positions.

    Args:
        dataset: The dataset.
        names: The names of the model's classes; None if they are not known.
        count: How many classes the model has.
        given: Whether the user gave the order of the data's classes; it holds where names cannot be matched.
        other: What has these classes, for errors.

    Returns:
        The dataset with its labels in the order of the model, and a line about it for the user, or nothing.

    Raises:
        InputError: If the classes do not fit.
    """
    ours, numbers = dataset.classes, tuple(map(str, range(count)))
    if ours in (names, numbers):
        return dataset, ""
    for order in (names or (), numbers):
        once = {name for name, times in Counter(order).items() if times == 1}
        if once.issuperset(ours) and (order is names or len(ours) == count):
            why = "the orders differ" if len(ours) == count else f"the data has {len(ours)} of {count} classes"
            matched = _Part(dataset, dataset.domains, classes=order)
            return matched, f"classes of data and model are matched by name: {why}"
    how_to = (
        f"Give the data's classes in the order of {other} with --data-option classes=FILE (a name per line), if "
        "they are the same."
    )
    if len(ours) != count:
        raise InputError(
            f"{other} has {count} classes, but the data {dataset.name!r} has {len(ours)} ({few(ours)}): they "
            f"do not belong together. {how_to}"
        )
    if given:
        return dataset, ""
    if names:
        raise InputError(
            f"the classes of the data {dataset.name!r} ({few(ours)}) are not those of {other} ({few(names)}). "
            f"{how_to}"
        )
    alphabetical = " (in alphabetical order; --data-option classes=FILE gives another)"
    return dataset, (
        f"the model has no class names: its classes 0 to {count - 1} are taken to be {few(ours)}"
        f"{alphabetical if list(ours) == sorted(ours) else ''}"
    )


def without_first(dataset: DomainDataset, first: int) -> DomainDataset:
    """Return a dataset without the first rows of its domains, such as those that settings were chosen on."""
    require_int("first", first, 0, int(dataset.counts.min()) - 1)
    return _Part(dataset, dataset.domains, first=first)


@lru_cache(maxsize=64)
def _drawn(count: int, limit: int | None, seed: int, first: int) -> Rows:
    # One draw per size of a domain: corrupted copies of one set keep the same images.
    rows = first + np.random.default_rng(seed).permutation(count - first)[:limit]
    return np.sort(rows).astype(np.int64)
