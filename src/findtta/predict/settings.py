"""Settings of batch prediction: what determines the predictions, and where they are computed."""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import PIL
import torch

import findtta
from findtta._extras import install_command, installed, require
from findtta._processes import usable_cores
from findtta.bench.code import behind_method, code_digest, module_files
from findtta.errors import OptionError
from findtta.models import Classifier, weights_digest
from findtta.options import Count, device_kind, option
from findtta.predictor import Predictor, PredictorSettings
from findtta.registry import load_method

#: From this number of images on, starting Ray pays off.
RAY_FROM = 10_000

_BATCHES_PER_BLOCK = 16


@dataclass(frozen=True)
class Execution:
    """Where predictions are computed (``"local"`` or ``"ray"``), and why, for the user."""

    executor: str
    workers: int | None  # models that compute at once; None means as many as a Ray cluster has room for
    reason: str


@dataclass(frozen=True, kw_only=True)
class Settings(PredictorSettings):
    """Everything that determines the predictions besides the images; the last three only say where to compute.

    A method that learns from batch to batch is refused, except one that settles after a warm-up, such as
    ``find-star``: it is warmed up on the first images of the input, and stays fixed from then on.
    """

    batch_size: Count = option(64, "images per batch; methods that use batch statistics depend on it")
    block_size: Count | None = option(
        None, "images per output file, a multiple of the batch size", shown="16 batches"
    )
    top: Count | None = option(
        None, "store the K most probable classes of each image only", metavar="K", shown="all probabilities"
    )
    format: Literal["parquet", "jsonl"] | None = option(
        None, "format of the output files", shown="parquet if pyarrow is installed"
    )
    image_column: str = option(
        "image", "column of Parquet inputs with the images: bytes, paths, or structs of both"
    )
    threads: Count = option(1, "CPU threads per worker; changes the predictions in the last bits")
    executor: Literal["local", "ray"] | None = option(
        None,
        "where to compute: in this process, or on Ray",
        shown=f"ray from {RAY_FROM:,} images on, if it is installed",
    )
    workers: Count | None = option(None, "number of Ray workers", shown="as many as there is room for")
    ray_address: str | None = option(
        None, "address of a Ray cluster", metavar="ADDRESS", shown="start Ray on this machine"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block % self.batch_size:
            below = max(self.block // self.batch_size, 1) * self.batch_size
            raise OptionError(
                f"block_size must be a multiple of batch_size ({self.batch_size}), such as {below}, "
                f"got {self.block}."
            )
        for name in ("workers", "ray_address"):
            if self.executor == "local" and getattr(self, name) is not None:
                raise OptionError(f"{name} must not be given with the executor 'local', which does not use Ray.")

    @property
    def block(self) -> int:
        """The number of images per block."""
        return self.block_size or _BATCHES_PER_BLOCK * self.batch_size

    @property
    def output_format(self) -> str:
        """The format of the output files."""
        return self.format or ("parquet" if installed("pyarrow") else "jsonl")

    @property
    def on_gpu(self) -> bool:
        """Whether each worker needs a GPU."""
        return torch.device(self.device).type == "cuda"

    def execution(self, images: int) -> Execution:
        """Choose where to compute the predictions of the images that are left."""
        if self.executor == "local":
            return Execution("local", 1, "as asked for")
        workers = self.workers or self._room()
        if self.executor == "ray" or self.workers is not None or self.ray_address is not None:
            require("ray", "ray", "the executor 'ray'")
            return Execution("ray", workers, "as asked for")
        if images < RAY_FROM:
            return Execution("local", 1, f"fewer than {RAY_FROM:,} images")
        if not (installed("ray") and installed("pyarrow")):
            return Execution("local", 1, f"Ray is not installed: {install_command('ray')}")
        if workers == 1:
            return Execution("local", 1, "there is room for one worker")
        return Execution("ray", workers, f"{RAY_FROM:,} images or more")

    def _room(self) -> int | None:
        """Return the number of workers that this machine has room for; None if Ray runs already and knows."""
        joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        if joined or self.ray_address is not None or os.environ.get("RAY_ADDRESS"):
            return None
        return max(torch.cuda.device_count() if self.on_gpu else usable_cores() // self.threads, 1)

    def identity(self, model: Classifier, predictor: Predictor, name: Any = None) -> dict[str, Any]:
        """Return everything that determines a prediction besides the images, as plain values without paths.

        ``name`` is what the model was opened by, if it has a name.
        """
        options = self.method_options()
        files = [name.rpartition(":")[0]] if isinstance(name, str) else []
        behind = [*files, *map(type, model.modules()), *behind_method(load_method(self.method), options)]
        same = ("method", "batch_size", "top", "max_image_mb", "max_pixels", "threads")
        identity = {
            **{name: getattr(self, name) for name in same},
            "arch": model.card.arch,
            "weights": weights_digest(model),
            "normalization": [list(model.card.mean), list(model.card.std)],
            "classes": list(predictor.labels),
            "options": dataclasses.asdict(options),
            "preprocessing": dataclasses.asdict(predictor.preprocess),
            "device": device_kind(self.device, compile=self.compile),
            "block_size": self.block,
            "format": self.output_format,
            "code": code_digest(module_files(behind)),
            "findtta": findtta.__version__,
            "torch": torch.__version__.partition("+")[0],
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        }
        return dict(json.loads(json.dumps(identity, default=str)))
