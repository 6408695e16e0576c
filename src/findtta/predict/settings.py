"""What decides the answers: settings, and the predictor that is made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL
import torch
from torch import Tensor

import findtta
from findtta.errors import OptionError
from findtta.images import ImageLimits
from findtta.models import Classifier, weights_digest
from findtta.predict.batches import Reading
from findtta.predict.output import FORMATS, SUFFIX_OF
from findtta.predictor import Predictor, PredictorSettings

_BATCHES_PER_BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class Settings(PredictorSettings):
    """All that decides the answers, besides the images.

    A method that learns from batch to batch is refused, except ``find-star``, which chooses its layers on the
    first batches and then stays as it is.

    Attributes:
        batch_size: Images per batch: a method compares the images of a batch with one another.
        block_size: Images per file of answers, a multiple of ``batch_size``; by default 16 batches.
        top: Keep so many most probable classes of each image; by default the probabilities of all.
        format: ``"parquet"`` or ``"jsonl"``; by default Parquet where pyarrow is installed.
        image_column: The column of Parquet files that holds the images.
        limits: How large images may be; larger ones count as unreadable.
        threads: CPU threads of each worker. Sums come out otherwise with another number of them, so it is
            a setting, and not taken from the machine.
    """

    batch_size: int = 64
    block_size: int | None = None
    top: int | None = None
    format: str | None = None
    image_column: str = "image"
    limits: ImageLimits = field(default_factory=ImageLimits)
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "block_size", "top", "threads", "image_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if self.block_size is None:
            object.__setattr__(self, "block_size", _BATCHES_PER_BLOCK * self.batch_size)
        if self.block % self.batch_size:
            below = max(self.block // self.batch_size, 1) * self.batch_size
            raise OptionError(
                f"block_size must be a multiple of batch_size ({self.batch_size}), got {self.block}; "
                f"{below} would be."
            )
        if self.format is None:
            has_arrow = importlib.util.find_spec("pyarrow") is not None
            object.__setattr__(self, "format", "parquet" if has_arrow else "jsonl")
        if self.format not in FORMATS:
            raise OptionError(f"format must be {' or '.join(map(repr, FORMATS))}, got {self.format!r}.")
        self.require_device()

    @property
    def block(self) -> int:
        """The size of a block, which is always known."""
        return self.block_size or 0

    @property
    def suffix(self) -> str:
        """How the files of answers end."""
        return SUFFIX_OF[self.format or ""]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a worker needs to make its predictor.

    Attributes:
        settings: The settings.
        model: The network.
        state: What the method has learned beforehand, if it has.
    """

    settings: Settings
    model: Classifier
    state: Mapping[str, Tensor] | None = None

    def predictor(self) -> Predictor:
        """Make the predictor."""
        made = self.settings.predictor(self.model)
        if self.state is not None:
            made.adapted.load_state_dict(self.state)
        return made

    def reading(self, predictor: Predictor) -> Reading:
        """Say how images are read for the predictor."""
        return Reading(self.settings.batch_size, predictor.preprocess, self.settings.limits)

    def identity(self, predictor: Predictor) -> dict[str, Any]:
        """Return everything that decides an answer, as plain values without paths."""
        settings, card = self.settings, self.model.card
        identity = {
            "arch": card.arch,
            "weights": weights_digest(self.model),
            "normalization": [list(card.mean), list(card.std)],
            "method": settings.method,
            "options": dataclasses.asdict(settings.method_options()),
            "preprocessing": dataclasses.asdict(predictor.preprocess),
            "device": torch.device(settings.device).type,
            "batch_size": settings.batch_size,
            "block_size": settings.block_size,
            "top": settings.top,
            "format": settings.format,
            "max_bytes": settings.limits.max_bytes,
            "max_pixels": settings.limits.max_pixels,
            "threads": settings.threads,
            "findtta": findtta.__version__,
            "torch": torch.__version__.partition("+")[0],
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        }
        plain: dict[str, Any] = json.loads(json.dumps(identity, sort_keys=True, default=str))
        return plain


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
