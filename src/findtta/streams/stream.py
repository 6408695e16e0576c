"""A stream as data: every sample in its place, and where batches end; making it, keeping it, summarizing it."""

import dataclasses
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from findtta._io import write_file
from findtta.data.dataset import DomainDataset
from findtta.errors import InputError, OptionError, few
from findtta.options import make_options, parse_assignments, require_int
from findtta.plugins import Kind, public_name
from findtta.streams.order import Ints, Order, Scenario, labels_of
from findtta.streams.scenarios import SCENARIOS

# Raise it whenever the same arguments begin to give another stream, or the file another layout.
_FORMAT = 2
LARGEST_BATCH = 1024
_LARGEST_SEED = 2**32 - 1
STREAM = Kind(
    "stream",
    SCENARIOS,
    "a subclass of findtta.streams.Scenario",
    lambda found: isinstance(found, type) and issubclass(found, Scenario),
    declares=("name", "summary"),
)
_ARRAYS = ("domain_ids", "rows", "sizes", "rounds")


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of a stream: its position there, and the part of the arrays of the stream that it is."""

    index: int
    round: int
    domain_ids: Ints
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches in the order in which they arrive; two streams are equal if their digests are.

    Iterating gives the batches, and so does ``stream[index]``; ``len`` is their number.
    """

    scenario: str  # its name
    settings: Mapping[str, Any]  # all those of the scenario
    seed: int
    batch_size: int  # of a full batch
    dataset: str  # the identity of the dataset it was made for
    domains: tuple[str, ...]  # their names
    domain_ids: Ints = dataclasses.field(repr=False)  # for each sample the position of its domain in ``domains``
    rows: Ints = dataclasses.field(repr=False)  # for each sample the row in that domain
    sizes: Ints = dataclasses.field(repr=False)  # of the batches
    rounds: Ints = dataclasses.field(repr=False)  # for each batch the pass over the data that it belongs to

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        for name in _ARRAYS:
            array = np.array(getattr(self, name), np.int64)  # a copy, which nobody else can change
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Batch:
        if not -len(self) <= index < len(self):
            raise IndexError(f"the stream has {len(self)} batches, so there is no batch {index}")
        index %= len(self)
        where = slice(self.boundaries[index], self.boundaries[index + 1])
        return Batch(index, int(self.rounds[index]), self.domain_ids[where], self.rows[where])

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def boundaries(self) -> Ints:
        """Where batches begin and end: batch i has the positions ``boundaries[i]`` to ``boundaries[i + 1]``."""
        return np.concatenate([[0], self.sizes.cumsum()])

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of all there is in the stream, the same on every machine."""
        digest = hashlib.sha256()
        for part in (self._header(), *(getattr(self, name).astype("<i8").tobytes() for name in _ARRAYS)):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def composition(self) -> Ints:
        """Return how many samples of each domain every batch has, shape (batches, domains)."""
        cells = np.repeat(np.arange(len(self)), self.sizes) * len(self.domains) + self.domain_ids
        counts = np.bincount(cells, minlength=len(self) * len(self.domains))
        return counts.reshape(len(self), len(self.domains))

    def check(self, dataset: DomainDataset) -> None:
        """Raise unless the stream was made for this dataset."""
        if dataset.identity == self.dataset:
            return
        if tuple(dataset.domains) != self.domains:
            difference = f"its domains are {few(self.domains)}, those of the dataset {few(dataset.domains)}"
        else:
            difference = "the domains are the same, but labels or images differ"
        raise InputError(
            f"the stream {self.scenario!r} was made for the dataset with identity {self.dataset}, but "
            f"{dataset.name!r} has identity {dataset.identity} ({difference}): make the stream again, or load and "
            "pick the dataset as it was."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream into one ``.npz`` file, which is never there half-written."""
        arrays = {name: getattr(self, name).astype("<i8") for name in _ARRAYS}
        header = json.dumps({"digest": self.digest, "stream": self._header().decode()})
        buffer = io.BytesIO()
        np.savez_compressed(buffer, header=np.frombuffer(header.encode(), np.uint8), **arrays)
        write_file(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote; a damaged or edited file is refused."""
        try:
            # numpy leaves a file open that it cannot read, unless it was opened here.
            with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in _ARRAYS}
                header = json.loads(file["header"].tobytes())
            made = json.loads(header["stream"])
            written_as = made.pop("format")
            stream = cls(**(made | arrays | {"domains": tuple(made["domains"])}))
            digest = header["digest"]
        except FileNotFoundError:
            raise OptionError(f"path must name a saved stream, but {str(path)!r} does not exist.") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error, zipfile.BadZipFile) as error:
            problem = f"cannot be read ({error}): it is damaged or not a stream"
        else:
            if written_as == _FORMAT and stream.digest == digest:
                return stream
            problem = "was damaged or edited: its content does not give the digest that it was saved with"
            if written_as != _FORMAT:
                problem = "was written by another release of findtta, whose streams differ"
        raise InputError(f"the stream file {str(path)!r} {problem}; make it again.")

    def _header(self) -> bytes:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        header = {name: value for name, value in fields.items() if name not in _ARRAYS}
        header |= {"format": _FORMAT, "settings": dict(self.settings)}
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def make(scenario: str, dataset: DomainDataset, *, batch_size: int = 64, seed: int = 0, **settings: Any) -> Stream:
    """Make the stream of a scenario; the same arguments always give the same stream.

    The scenario is a name in ``SCENARIOS`` or ``file.py:NAME``, and the settings are its own. The dataset, usually
    picked with :meth:`DomainDataset.pick`, is what the stream is made of; no image is looked at, apart from those
    that its ``identity`` reads. A full batch has 1 to 1024 samples.
    """
    arrangement = build(scenario, settings)
    # Integers of numpy become Python's, which JSON can write.
    batch_size, seed = (int(value) if isinstance(value, np.integer) else value for value in (batch_size, seed))
    require_int("batch_size", batch_size, 1, LARGEST_BATCH)
    require_int("seed", seed, 0, _LARGEST_SEED)
    _require_one_batch(len(dataset), batch_size, "the dataset")
    order = arrangement.arrange(dataset, batch_size, seed)
    _require_one_batch(len(order.rows), batch_size, f"the stream {scenario!r}")
    _check(order, dataset, scenario)
    return Stream(
        scenario=public_name(scenario),
        settings=dataclasses.asdict(arrangement),
        seed=seed,
        batch_size=batch_size,
        dataset=dataset.identity,
        domains=tuple(dataset.domains),
        domain_ids=order.domain_ids,
        rows=order.rows,
        sizes=order.sizes,
        rounds=np.zeros_like(order.sizes) if order.rounds is None else order.rounds,
    )


def build(scenario: str, settings: Mapping[str, Any]) -> Scenario:
    """Make a scenario from its settings, refusing those it does not have."""
    return make_options(f"stream {scenario!r}", STREAM.load(scenario), settings)


def _check(order: Order, dataset: DomainDataset, scenario: str) -> None:
    """Raise unless every position of an order is a sample of the dataset, and batches cover all positions."""
    ids, rows, sizes = (np.asarray(part) for part in (order.domain_ids, order.rows, order.sizes))
    problem = ""
    if not len(ids) == len(rows) == sizes.sum():
        problem = f"{len(ids)} domains and {len(rows)} rows for batches of {sizes.sum()} samples in all"
    elif sizes.min() < 1:
        problem = f"a batch of {sizes.min()} samples"
    elif order.rounds is not None and len(order.rounds) != len(sizes):
        problem = f"rounds of {len(order.rounds)} batches for {len(sizes)} batches"
    elif min(ids.min(), rows.min()) < 0 or ids.max() >= len(dataset.domains):
        problem = "domains or rows that do not exist"
    elif (rows >= dataset.counts[ids]).any():
        problem = "rows that do not exist"
    if problem:
        raise InputError(f"the stream {scenario!r} must arrange samples of the dataset in batches, got {problem}.")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Read a scenario such as ``"wild:delta=0.01,variant=paper"``; returns its name and its settings, checked."""
    name, given = STREAM.split(text)
    settings = parse_assignments(f"settings of stream {name!r}", given)
    build(name, settings)
    return name, settings


def _require_one_batch(count: int, batch_size: int, where: str) -> None:
    if count < batch_size:
        raise OptionError(
            f"batch_size must be at most the number of samples of {where}, {count}, got {batch_size}: "
            "take a smaller batch_size or more samples."
        )


@dataclass(frozen=True)
class Summary:
    """What a stream is like; ``domains`` and ``classes`` are the mean numbers of distinct ones per batch."""

    batches: int
    samples: int
    domains: float
    classes: float
    digest: str

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples in {self.batches:,} batches, "
            f"on average {self.domains:.2f} domains and {self.classes:.2f} classes per batch\n"
            f"digest {self.digest}"
        )


def summarize(stream: Stream, dataset: DomainDataset) -> Summary:
    """Summarize a stream that was made for a dataset."""
    stream.check(dataset)
    labels = labels_of(dataset, stream.domain_ids, stream.rows)
    batch = np.repeat(np.arange(len(stream)), stream.sizes)
    pairs = np.unique(batch * len(dataset.classes) + labels)
    return Summary(
        batches=len(stream),
        samples=len(stream.rows),
        domains=float(np.count_nonzero(stream.composition(), axis=1).mean()),
        classes=len(pairs) / len(stream),
        digest=stream.digest,
    )
