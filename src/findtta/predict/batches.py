"""From parts of the input to batches of prepared pictures, and from these to answers."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from findtta.images import ImageError, ImageLimits, Pixels, Preprocessing, decode_image
from findtta.predict.sources import Entry, Part, shown
from findtta.predictor import Predictor


@dataclass(frozen=True)
class Unreadable:
    """An image that could not be read: which, and why."""

    row: int
    path: str
    code: str
    error: str


@dataclass(frozen=True)
class Reading:
    """How images become batches.

    Attributes:
        batch_size: Positions of the input per batch.
        prepare: Makes pictures what the network takes.
        limits: How large images may be.
    """

    batch_size: int
    prepare: Preprocessing
    limits: ImageLimits

    def batches(self, part: Part, threads: int) -> Iterator[Batch]:
        """Read a part of the input, one batch ahead of what is asked for.

        A batch is ``batch_size`` neighbouring positions. One that cannot be read leaves it, and no other
        moves up: a broken file touches its own batch only.

        Args:
            part: The part; it begins where a batch begins.
            threads: How many images are read at once.

        Yields:
            The batches.
        """
        with ThreadPoolExecutor(threads) as pool:
            entries = part.entries()
            coming: list[tuple[Entry, Future[Pixels]]] = []
            while True:
                ready = coming
                chosen = itertools.islice(entries, self.batch_size)
                coming = [(entry, pool.submit(self._picture, entry)) for entry in chosen]
                if ready:
                    yield self._gather(ready)
                if not coming:
                    return

    def _picture(self, entry: Entry) -> Pixels:
        content = entry.content
        if content is None:
            raise ImageError("empty", "image: there is neither a picture nor a path.")
        data = content if isinstance(content, bytes) else read_file(content, self.limits)
        return self.prepare(decode_image(data, self.limits))

    def _gather(self, read: list[tuple[Entry, Future[Pixels]]]) -> Batch:
        rows, names, pictures, unreadable = [], [], [], []
        for entry, future in read:
            name = shown(entry.name)
            try:
                pictures.append(future.result())
            except ImageError as error:
                unreadable.append(Unreadable(entry.row, name, error.code, str(error)))
            else:
                rows.append(entry.row)
                names.append(name)
        stacked = np.stack(pictures) if pictures else np.empty((0, *self.prepare.size, 3), np.uint8)
        return Batch(np.array(rows, np.int64), tuple(names), stacked, tuple(unreadable))


@dataclass(frozen=True, eq=False)
class Batch:
    """Prepared pictures, and what could not be read among them.

    Attributes:
        rows: Positions of the pictures in the input.
        names: What they are called.
        pictures: ``(samples, size, size, 3)``.
        unreadable: The rest of the batch.
    """

    rows: NDArray[np.int64]
    names: tuple[str, ...]
    pictures: Pixels
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to one batch, row by row.

    Attributes:
        rows: Positions in the input.
        names: What the images are called.
        probabilities: ``(samples, classes)``.
        groups: The group of each image, named by the row of one of its members, so that no two batches
            share a name; -1 where there is none.
        drift: How far each image is from the training data; NaN if unknown.
        unreadable: Images without an answer.
    """

    rows: NDArray[np.int64]
    names: tuple[str, ...]
    probabilities: NDArray[np.float32]
    groups: NDArray[np.int64]
    drift: NDArray[np.float64]
    unreadable: tuple[Unreadable, ...]

    @property
    def positions(self) -> int:
        """How many positions of the input are settled."""
        return len(self.rows) + len(self.unreadable)


def answer(predictor: Predictor, batch: Batch) -> Answers:
    """Predict one batch."""
    found = predictor(batch.pictures)
    members = found.last_groups
    rows = batch.rows
    groups = np.where(members >= 0, rows[members.clip(0)], -1) if len(rows) else np.zeros(0, np.int64)
    return Answers(rows, batch.names, found.probabilities, groups, found.sample_drift, batch.unreadable)


def read_file(path: Path, limits: ImageLimits) -> bytes:
    """Read a file that may be anything: at most as much as is accepted, and only from real files.

    Raises:
        ImageError: If it cannot be read, or is too large.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("not_a_file", "image: this is no file, but a folder, a pipe or a device.")
        if status.st_size > limits.max_bytes:
            raise ImageError(
                "too_many_bytes",
                f"image: {status.st_size:,} bytes, and at most {limits.max_bytes:,} are accepted.",
            )
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except ImageError:
        raise
    except OSError as error:
        raise ImageError("unreadable", f"image: the file cannot be read ({error.strerror}).") from None
    except ValueError:
        raise ImageError("unreadable", "image: no file can have this name.") from None
