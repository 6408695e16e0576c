"""The folder of answers: one file per block, which is there whole or not at all, and what they were made with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta._io import UNFINISHED, atomic_write
from findtta.errors import InputError, OptionError
from findtta.predict.batches import Answers
from findtta.predict.sources import import_pyarrow

Columns = Mapping[str, Sequence[Any]]

_LAYOUT = 1  # of the folder; a later release that changes it counts up


class Output:
    """A folder of answers that is new, or was begun with the same settings and the same input.

    Args:
        folder: Where it is, or will be.
        identity: Everything that decides the answers.
        labels: The names of the classes.
        top: Keep so many classes of each image; None keeps all.
        format: A name from ``FORMATS``.

    Raises:
        OptionError: If the folder holds something else.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, Any], labels: Sequence[str], *, top: int | None, format: str
    ) -> None:
        self.folder, self._labels, self._top = folder, labels, top
        self.predictions, self.errors = folder / "predictions", folder / "errors"
        self._write, self._suffix = FORMATS[format], SUFFIX_OF[format]
        try:
            self._begin({"layout": _LAYOUT, **identity, "classes": list(labels)})
        except OSError as error:
            raise OptionError(f"output {str(folder)!r} cannot be written to ({error.strerror}).") from error

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        file = self.folder / "manifest.json"
        if file.exists():
            self._require_same(file, manifest)
        elif self.folder.exists() and any(not UNFINISHED.fullmatch(path.name) for path in self.folder.iterdir()):
            raise OptionError(
                f"output {str(self.folder)!r} is there already and holds no predictions; name a new folder."
            )
        for folder in (self.predictions, self.errors):
            folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with atomic_write(file) as partial:
                partial.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        # What a kill has left half written.
        for folder in (self.folder, self.predictions, self.errors):
            for path in folder.iterdir():
                if UNFINISHED.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def _require_same(self, file: Path, manifest: Mapping[str, Any]) -> None:
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(before, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            raise OptionError(f"output: {str(file)!r} is not a manifest ({error}); name a new folder.") from error
        changed = [
            f"{name} was {_short(before.get(name))} and is {_short(manifest.get(name))}"
            for name in sorted({*before, *manifest})
            if before.get(name) != manifest.get(name)
        ]
        if changed:
            raise OptionError(
                f"output {str(self.folder)!r} was begun with other settings: {'; '.join(changed)}. Name a new "
                "folder, or delete this one to start over; mixing them would make answers that no run gives."
            )

    def is_done(self, block: int) -> bool:
        """Tell whether a block has been written."""
        return self._file(block).exists()

    def write(self, block: int, answers: Sequence[Answers]) -> None:
        """Write the answers to the batches of one block.

        The file of answers comes last: where it is, the block is complete.
        """
        unreadable = [asdict(each) for batch in answers for each in batch.unreadable]
        try:
            if unreadable:
                with atomic_write(self._errors_of(block)) as partial:
                    _write_lines(partial, unreadable)
            with atomic_write(self._file(block)) as partial:
                self._write(partial, columns(answers, self._labels, self._top))
        except OSError as error:
            raise InputError(
                f"output: block {block} cannot be written to {str(self.folder)!r} ({error.strerror}). Blocks "
                "that are there are complete: the same command goes on with the rest."
            ) from error

    def count_unreadable(self) -> int:
        """Return how many images of the finished blocks could not be read."""
        count = 0
        for path in self.errors.glob("block-*.jsonl"):
            if self.is_done(int(path.stem.removeprefix("block-"))):
                with path.open("rb") as lines:
                    count += sum(1 for _ in lines)
        return count

    def _file(self, block: int) -> Path:
        return self.predictions / f"block-{block:07d}{self._suffix}"

    def _errors_of(self, block: int) -> Path:
        return self.errors / f"block-{block:07d}.jsonl"


def columns(answers: Sequence[Answers], labels: Sequence[str], top: int | None) -> Columns:
    """Lay the answers to several batches out in columns.

    Args:
        answers: The batches, in order.
        labels: The names of the classes.
        top: Keep so many classes of each image; None keeps all.

    Returns:
        ``row``, ``path``, ``index`` and ``label`` of the most probable class, ``probabilities`` (or
        ``top_indices`` and ``top_probabilities``), ``group`` and ``drift``.
    """
    probabilities = _joined([batch.probabilities for batch in answers], (0, len(labels)), np.float32)
    groups = _joined([batch.groups for batch in answers], (0,), np.int64)
    drift = _joined([batch.drift for batch in answers], (0,), np.float64)
    # A stable order: of equally probable classes the first comes first, as argmax has it.
    order = np.argsort(-probabilities, axis=1, kind="stable")
    best = order[:, 0].tolist() if len(labels) else []
    table: dict[str, Sequence[Any]] = {
        "row": _joined([batch.rows for batch in answers], (0,), np.int64).tolist(),
        "path": [name for batch in answers for name in batch.names],
        "index": best,
        "label": [labels[index] for index in best],
    }
    if top is None:
        table["probabilities"] = [_numbers(row) for row in probabilities]
    else:
        kept = order[:, :top]
        table["top_indices"] = kept.tolist()
        table["top_probabilities"] = [_numbers(row) for row in np.take_along_axis(probabilities, kept, 1)]
    table["group"] = [None if group < 0 else group for group in groups.tolist()]
    table["drift"] = _numbers(drift)
    return table


def _joined(parts: Sequence[NDArray[Any]], empty: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(empty, dtype), *parts])


def _numbers(values: NDArray[Any]) -> list[float | None]:
    """Return numbers as JSON knows them: it has none that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _write_parquet(path: Path, table: Columns) -> None:
    arrow = import_pyarrow()
    types = {
        "row": arrow.int64(),
        "path": arrow.string(),
        "index": arrow.int32(),
        "label": arrow.string(),
        "probabilities": arrow.list_(arrow.float32()),
        "top_indices": arrow.list_(arrow.int32()),
        "top_probabilities": arrow.list_(arrow.float32()),
        "group": arrow.int64(),
        "drift": arrow.float64(),
    }
    schema = arrow.schema([(name, types[name]) for name in table])
    arrow.parquet.write_table(arrow.table(dict(table), schema=schema), path, compression="zstd")


def _write_jsonl(path: Path, table: Columns) -> None:
    _write_lines(path, (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)))


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]] | Iterator[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


#: How a table is written, by the name of the format.
FORMATS: Mapping[str, Callable[[Path, Columns], None]] = {"parquet": _write_parquet, "jsonl": _write_jsonl}
SUFFIX_OF: Mapping[str, str] = {"parquet": ".parquet", "jsonl": ".jsonl"}
