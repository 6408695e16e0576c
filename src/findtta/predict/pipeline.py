"""Predicting an input from end to end into a folder, and continuing where an earlier run stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from findtta._extras import require
from findtta._io import UNFINISHED, atomic_write, remove_unfinished, write_file, write_parquet
from findtta._processes import torch_threads
from findtta.errors import InputError, OptionError
from findtta.predict.compute import Predicted, Reader, Record, compute_on_ray, predict_batch
from findtta.predict.settings import Execution, Settings
from findtta.predict.sources import Source, open_source
from findtta.predictor import Predictor
from findtta.registry import load_method

_LAYOUT = 2  # of the output folder; a release that changes it counts up

#: Called with the number of images that are done, and of all images.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """The outcome of batch prediction."""

    images: int  # number of images of the input
    skipped: int  # how many of them could not be read, in earlier runs or now; the reasons are in ``errors``
    blocks_before: int  # blocks that existed already
    blocks_now: int  # blocks that were computed
    seconds: float  # time taken
    execution: Execution  # where they were computed, and why
    output: Path  # the folder of predictions

    @property
    def predictions(self) -> Path:
        """The folder with one file of predictions per block."""
        return self.output / "predictions"

    @property
    def errors(self) -> Path:
        """The folder with the images that could not be read."""
        return self.output / "errors"


def predict(
    source: str | Path,
    output: str | Path,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    announce: Callable[[Execution], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Summary:
    """Predict all images of an input; blocks that an earlier run has finished are not computed again.

    Args:
        source: A folder, a list of paths, or Parquet files, as a path or URL; see ``open_source``.
        output: The folder of predictions on this machine: new, or begun with the same settings and input.
        settings: The model, the method, and how images are read and predictions written.
        progress: Called after each batch.
        announce: Called before the computation with where it takes place.
        tell: Called before it with a line about the input of the model.

    Returns:
        The outcome.

    Raises:
        InputError: If the input cannot be used.
        OptionError: If a setting cannot be used, or the output was begun with others.
    """
    began = time.monotonic()
    settings = settings or Settings()
    _require_fixed(settings)
    if "://" in str(output):
        raise OptionError(
            f"output must be a folder on this machine, which may be a mounted drive, got the URL {str(output)!r}; "
            "copy the folder there afterwards."
        )
    opened = open_source(source, settings.image_column, leave_out=Path(output))
    with torch_threads(settings.threads), contextlib.closing(opened) as images:
        name, model = settings.model, settings.load_model()
        settings = dataclasses.replace(settings, model=model)
        predictor = settings.predictor()
        if tell:
            tell(predictor.input)
        reader = Reader(settings.batch_size, predictor.preprocess, settings.image_limits)
        state = _warm_up(predictor, reader, images)
        listing = {"input": images.kind, "images": len(images), "listing": images.digest}
        out = Output(Path(output), settings.identity(model, predictor, name) | listing)
        starts = range(0, len(images), settings.block)
        spans = [range(start, min(start + settings.block, len(images))) for start in starts]
        todo = {block: span for block, span in enumerate(spans) if not out.is_done(block)}
        execution = settings.execution(sum(map(len, todo.values())))
        if announce:
            announce(execution)
        if todo:
            parts = ((block, images.part(span.start, span.stop)) for block, span in todo.items())
            if execution.executor == "ray":
                predicted = compute_on_ray(parts, settings, state, reader, execution.workers)
            else:
                batches = reader.batches(part for _, part in parts)
                made = (predict_batch(predictor, batch, settings.top) for batch in batches)
                predicted = ((records[0]["row"] // settings.block, records) for records in made)
            with contextlib.closing(predicted):  # stops Ray, if it was started, whatever happens here
                _write_blocks(predicted, out, todo, len(images), progress)
        return Summary(
            images=len(images),
            skipped=out.count_unreadable(),
            blocks_before=len(spans) - len(todo),
            blocks_now=len(todo),
            seconds=time.monotonic() - began,
            execution=execution,
            output=out.folder,
        )


def _require_fixed(settings: Settings) -> None:
    """Refuse methods that never stop changing."""
    method = load_method(settings.method)
    if method.keeps_learning():
        raise OptionError(
            f"method: {settings.method!r} learns from each batch, so that a prediction depends on all images "
            "before it, but blocks are computed by several workers and after restarts. Use a method that keeps no "
            "state (find, find-soft, tbn, alpha-bn, iabn, source) or settles after a warm-up (find-star), or call "
            "findtta.adapt in a loop of your own."
        )


def _warm_up(predictor: Predictor, reader: Reader, images: Source) -> Mapping[str, Tensor] | None:
    """Warm the method up on the first batches of the input, whatever blocks are left to compute.

    Returns the state of the adapted model afterwards, or None if the method needs no warm-up.
    """
    adapted = predictor.adapted
    needed, start = adapted.warm_up_left, 0
    if not needed:
        return None
    while adapted.warm_up_left and start < len(images):
        stop = start + reader.batch_size * adapted.warm_up_left
        for batch in reader.batches([images.part(start, stop)]):
            predictor(batch.images)
        start = stop  # more than once only if whole batches were unreadable
    if adapted.warm_up_left:
        usable = needed - adapted.warm_up_left
        raise InputError(
            f"input: {adapted.name} warms up on {needed} batches, but {len(images)} images give {usable} readable "
            f"batches of {reader.batch_size}. Use the method find, or the option {adapted.warm_up_option}="
            f"{max(usable, 1)}."
        )
    return {name: tensor.cpu() for name, tensor in adapted.state_dict().items()}


def _write_blocks(
    predicted: Predicted, out: Output, todo: Mapping[int, range], images: int, progress: Progress | None
) -> None:
    """Write each block when its last batch has arrived."""
    waiting: dict[int, list[Record]] = {}
    done = images - sum(map(len, todo.values()))
    for block, records in predicted:
        waiting.setdefault(block, []).extend(records)
        done += len(records)
        if len(waiting[block]) == len(todo[block]):
            out.write(block, waiting.pop(block))
        if progress:
            progress(done, images)
    if waiting:
        raise InputError(
            f"input: it became shorter while it was read; blocks {sorted(waiting)} are missing images."
        )


class Output:
    """A folder of predictions that is new, or was begun with the same settings and the same input.

    ``identity`` is everything that determines the predictions; ``top`` and ``format`` are used here. A folder
    that holds something else is refused.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.predictions, self.errors = folder / "predictions", folder / "errors"
        self._top, self._format = identity["top"], identity["format"]
        try:
            self._begin({"layout": _LAYOUT, **identity})
        except OSError as error:
            raise OptionError(f"output {str(folder)!r} cannot be written to ({error.strerror}).") from error

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        file = self.folder / "manifest.json"
        if file.exists():
            self._require_same(file, manifest)
        elif self.folder.exists() and any(not UNFINISHED.fullmatch(path.name) for path in self.folder.iterdir()):
            raise OptionError(
                f"output {str(self.folder)!r} exists already and holds no predictions; name a new folder."
            )
        else:
            write_file(file, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
        for folder in (self.folder, self.predictions, self.errors):
            folder.mkdir(exist_ok=True)
            remove_unfinished(folder)

    def _require_same(self, file: Path, manifest: Mapping[str, Any]) -> None:
        try:
            before = json.loads(file.read_bytes())
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise OptionError(f"output: {str(file)!r} is not a manifest; name a new folder.")
        changed = [
            f"{name} was {_shorten(before.get(name))} and is {_shorten(manifest.get(name))}"
            for name in sorted({*before, *manifest})
            if before.get(name) != manifest.get(name)
        ]
        if changed:
            raise OptionError(
                f"output {str(self.folder)!r} was begun with other settings: {'; '.join(changed)}. Name a new "
                "folder, or delete this one to start over; predictions of both must not be mixed."
            )

    def is_done(self, block: int) -> bool:
        """Tell whether a block has been written."""
        return self._file(block).exists()

    def write(self, block: int, records: Sequence[Record]) -> None:
        """Write the records of one block; the file of predictions comes last: with it the block is complete."""
        unreadable = [record for record in records if "error" in record]
        rows = [record for record in records if "error" not in record]
        try:
            if unreadable:
                with atomic_write(self.errors / f"block-{block:07d}.jsonl") as partial:
                    partial.write_bytes(_lines(unreadable))
            with atomic_write(self._file(block)) as partial:
                if self._format == "parquet":
                    write_parquet(partial, _schema(self._top), rows)
                else:
                    partial.write_bytes(_lines(rows))
        except OSError as error:
            raise InputError(
                f"output: block {block} cannot be written to {str(self.folder)!r} ({error.strerror}). Existing "
                "blocks are complete: run the same command again to compute the rest."
            ) from error

    def count_unreadable(self) -> int:
        """Return the number of images of finished blocks that could not be read."""
        count = 0
        for path in self.errors.glob("block-*.jsonl"):
            if self.is_done(int(path.stem.removeprefix("block-"))):
                with path.open("rb") as lines:
                    count += sum(1 for _ in lines)
        return count

    def _file(self, block: int) -> Path:
        return self.predictions / f"block-{block:07d}.{self._format}"


def _schema(top: int | None) -> dict[str, Any]:
    """Return the columns of Parquet files and their types."""
    arrow = require("pyarrow", "results", "writing Parquet files")
    indices, numbers = arrow.list_(arrow.int32()), arrow.list_(arrow.float32())
    classes = {"probabilities": numbers} if top is None else {"top_indices": indices, "top_probabilities": numbers}
    start = {"row": int, "path": str, "index": arrow.int32(), "label": str}
    return start | classes | {"group": int, "drift": float}


def _lines(rows: Sequence[Record]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _shorten(value: object) -> str:
    return textwrap.shorten(repr(value), 60, placeholder="...")
