"""From parts of the input to batches of pixels, and from these to predictions: in this process, or on Ray."""

import contextlib
import itertools
import logging
import os
import pickle
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from findtta._extras import require
from findtta._io import finite
from findtta._prefetch import READS, in_order, one_ahead
from findtta._processes import usable_cores
from findtta._ray import Place, ray_session, worker_error
from findtta.errors import InputError, OptionError, WorkerError
from findtta.images import ImageError, ImageLimits, Pixels, Preprocessing, read_image
from findtta.predict.remote import Remote
from findtta.predict.settings import Settings
from findtta.predict.sources import Entry, Part
from findtta.predictor import Predictor

_MOST_DECODERS = 8
# CPUs that Ray reserves for a task that reads images, which also waits for disks. Ray would fuse stages that ask
# for the same resources, and a model would wait for its own images.
_READER_CPUS = 0.5

#: Number and content of each block.
Blocks = Iterable[tuple[int, Part]]
#: One row of a table: of an output file the prediction for one image, or the reason why it could not be read.
Record = dict[str, Any]
#: The number of the block and the records of each batch, in order; closing it stops what computes them.
Predicted = Generator[tuple[int, list[Record]], None, None]


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive positions of the input: a record of each, and the pixels of those without an error in it."""

    records: list[Record]
    images: Pixels


@dataclass(frozen=True)
class Reader:
    """Reads images in batches of ``batch_size`` consecutive positions, of which the first is a multiple of it.

    An image that cannot be read is left out of its batch, and no other image moves up: a broken file affects its
    own batch only.
    """

    batch_size: int
    preprocess: Preprocessing
    limits: ImageLimits

    def batches(self, parts: Iterable[Part], decoders: int | None = None) -> Iterator[Batch]:
        """Read parts of the input ahead of what is asked for.

        Up to a batch of images (at least ``READS``) is being read while one batch is ready and one is used. Files
        are fetched at once, to hide the latency of a store, but only ``decoders`` of them are decoded at once.
        """
        decoding = threading.Semaphore(decoders or min(usable_cores(), _MOST_DECODERS))
        entries = ((row, entry) for part in parts for row, entry in enumerate(part.entries(), part.start))
        read = in_order(partial(self._read, decoding), entries, max(self.batch_size, READS))
        cut = itertools.groupby(read, lambda image: image[0]["row"] // self.batch_size)
        return one_ahead(self._gather(images) for _, images in cut)

    def _read(self, decoding: threading.Semaphore, image: tuple[int, Entry]) -> tuple[Record, Pixels | None]:
        """Return the record of an image, and its pixels unless there is an error in it."""
        row, (name, content) = image
        # Bytes that are not UTF-8 are spelled out, so that any file can hold the name.
        record: Record = {"row": row, "path": os.fsencode(name).decode("utf-8", "backslashreplace")}
        try:
            if isinstance(content, Remote):
                content = content.read_bytes(self.limits.max_bytes)
            with decoding:
                return record, read_image(content, self.limits, self.preprocess, name="image")
        except ImageError as error:
            if error.code == "unavailable":
                raise InputError(f"{error} Finished blocks are kept: run the same command again.") from error
            return record | {"code": error.code, "error": str(error)}, None

    def _gather(self, images: Iterable[tuple[Record, Pixels | None]]) -> Batch:
        records, found = zip(*images, strict=True)
        pixels = [image for image in found if image is not None]
        return Batch(
            list(records), np.stack(pixels) if pixels else np.empty((0, *self.preprocess.size, 3), np.uint8)
        )


def predict_batch(predictor: Predictor, batch: Batch, top: int | None) -> list[Record]:
    """Complete the records of a batch; of each image ``top`` classes are kept, or all if it is None."""
    found = predictor(batch.images)
    # Stable: of equally probable classes the first comes first, as argmax has it.
    order = np.argsort(-found.probabilities, axis=1, kind="stable")
    groups, drift = found.last_groups, found.sample_drift.tolist()
    readable = [record for record in batch.records if "error" not in record]
    rows = [record["row"] for record in readable]
    for sample, record in enumerate(readable):
        best = int(order[sample, 0])
        record |= {"index": best, "label": predictor.labels[best]}
        if top is None:
            record["probabilities"] = found.probabilities[sample].tolist()
        else:
            kept = order[sample, :top]
            record["top_indices"] = kept.tolist()
            record["top_probabilities"] = found.probabilities[sample, kept].tolist()
        # The row of one member, so that groups of different batches have different numbers.
        record["group"] = rows[groups[sample]] if groups[sample] >= 0 else None
        record["drift"] = drift[sample]
    return [finite(record) for record in batch.records]


def compute_on_ray(
    blocks: Blocks, settings: Settings, state: Mapping[str, Tensor] | None, reader: Reader, workers: int | None
) -> Predicted:
    """Compute blocks in a pipeline of Ray Data.

    Tasks read images, and actors predict. One row of the first dataset is one block, and one row of all that
    follow is one batch. Ray may cut and join its own blocks between rows; batches stay what they are. The model
    of ``settings`` must be loaded; ``state`` is that of the adapted model after its warm-up, if it has one.
    """
    data = require("ray.data", "ray", "the executor 'ray'")
    arrow = require("pyarrow", "ray", "the executor 'ray'")
    cpus = (workers or 1) * (settings.threads + 1)
    with ray_session(settings.ray_address, num_cpus=cpus) as ray:
        workers = _workers(ray, workers, settings)
        # In Ray's object store, which spills to disk: the names of millions of images do not stay in this process.
        rows = ([{"block": number, "content": pickle.dumps(part)}] for number, part in blocks)
        dataset = data.from_arrow_refs([ray.put(arrow.Table.from_pylist(row)) for row in rows])
        # Settings of this dataset, not of all datasets of the process.
        dataset.context.enable_progress_bars = False
        dataset.context.execution_options.preserve_order = True
        batches = dataset.flat_map(_read, num_cpus=_READER_CPUS, fn_kwargs={"reader": reader})
        predicted = batches.map(
            _Worker,
            fn_constructor_args=(Place.here(), ray.put((settings, state))),
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=settings.threads,
            num_gpus=1 if settings.on_gpu else None,
        )
        try:
            with _quiet_console():
                for row in predicted.iter_rows():
                    yield row["block"], pickle.loads(row["content"])
        except Exception as error:  # Ray Data has several families of errors
            raise WorkerError(
                f"ray: workers failed ({worker_error(error)}). Finished blocks are kept: run the same command "
                "again to compute the rest."
            ) from error


def _read(row: Record, reader: Reader) -> Iterator[Record]:
    """Read the images of one block, batch by batch; runs in a task."""
    for batch in reader.batches([pickle.loads(row["content"])], decoders=2):
        yield {**row, "content": pickle.dumps(batch)}


class _Worker:
    """Predicts batches; lives in an actor."""

    def __init__(self, place: Place, recipe: Any) -> None:
        place.enter()  # before anything is found by its name there
        settings, state = require("ray", "ray", "a worker").get(recipe)
        self._top: int | None = settings.top
        torch.set_num_threads(settings.threads)
        self._predictor: Predictor = settings.predictor()
        if state is not None:
            self._predictor.adapted.load_state_dict(state)

    def __call__(self, row: Record) -> Record:
        records = predict_batch(self._predictor, pickle.loads(row["content"]), self._top)
        return {**row, "content": pickle.dumps(records)}


def _workers(ray: Any, workers: int | None, settings: Settings) -> int:
    """Return the number of workers; refuse more than there is room for, since Ray would wait forever."""
    there = ray.cluster_resources()
    # Reading takes cores as well, or there would never be something to predict.
    room = int(there.get("CPU", 0) - 1) // settings.threads
    if settings.on_gpu:
        room = min(room, int(there.get("GPU", 0)))
    workers = workers or max(room, 1)
    if workers > room:
        raise OptionError(
            f"workers must be at most {room}, got {workers}: Ray has {there.get('CPU', 0):g} CPUs (one is for "
            f"reading, and each worker takes {settings.threads}) and {there.get('GPU', 0):g} GPUs."
        )
    return workers


@contextlib.contextmanager
def _quiet_console() -> Iterator[None]:
    """Keep messages of Ray Data out of the terminal: its log files have them, and errors are raised as well."""
    handlers = [handler for handler in logging.getLogger("ray.data").handlers if handler.level == logging.INFO]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setLevel(logging.INFO)
