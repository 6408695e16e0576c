"""The folder of predictions: one file per block, written whole or not at all, and a manifest of what made them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta._io import UNFINISHED, atomic_write, write_file, write_parquet
from findtta.errors import InputError, OptionError
from findtta.predict.compute import Record
from findtta.predict.settings import SUFFIXES

_LAYOUT = 2  # of the folder; a release that changes it counts up


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
            for path in folder.iterdir():
                if UNFINISHED.fullmatch(path.name):  # a killed process was writing it
                    path.unlink(missing_ok=True)

    def _require_same(self, file: Path, manifest: Mapping[str, Any]) -> None:
        try:
            before = json.loads(file.read_bytes())
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise OptionError(f"output: {str(file)!r} is not a manifest; name a new folder.")
        changed = [
            f"{name} was {_short(before.get(name))} and is {_short(manifest.get(name))}"
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
        return self.predictions / f"block-{block:07d}{SUFFIXES[self._format]}"


def _schema(top: int | None) -> dict[str, Any]:
    """Return the columns of Parquet files and their types."""
    arrow = require("pyarrow", "results", "writing Parquet files")
    indices, numbers = arrow.list_(arrow.int32()), arrow.list_(arrow.float32())
    classes = {"probabilities": numbers} if top is None else {"top_indices": indices, "top_probabilities": numbers}
    start = {"row": int, "path": str, "index": arrow.int32(), "label": str}
    return start | classes | {"group": int, "drift": float}


def _lines(rows: Sequence[Record]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
