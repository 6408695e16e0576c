"""Blocks computed by a pipeline of Ray Data: tasks read and decode, actors predict, the caller writes.

One row of the first dataset is one block, and one row of all that follows is one batch. Ray may cut and join
its own blocks between rows as it likes; batches stay what they are.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pickle
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch

from findtta._ray import first_line, ray_session
from findtta.errors import FindTTAError, OptionError
from findtta.predict.batches import Answers, Reading, answer
from findtta.predict.settings import Recipe
from findtta.predict.sources import Part, import_pyarrow

#: CPUs that Ray reserves for a task that reads, which waits for disks as well. Stages that ask for the same would
#: be made one by Ray, and a network would wait for its own images.
_READER = 0.5


class WorkerError(FindTTAError, RuntimeError):
    """Workers far away could not go on."""


def compute_on_ray(
    blocks: Iterable[tuple[int, Part]],
    recipe: Recipe,
    reading: Reading,
    *,
    workers: int | None,
    address: str | None,
) -> Generator[tuple[int, Answers], None, None]:
    """Compute blocks on Ray, on a cluster or on this machine.

    Args:
        blocks: Number and content of each block.
        recipe: Makes the predictors.
        reading: How images are read.
        workers: How many predictors; by default as many as the cluster has room for.
        address: Of the cluster; by default ``$RAY_ADDRESS``, or else a Ray is started here and stopped again.

    Yields:
        Number of the block and answers, batch by batch, in order.
    """
    cpus = (workers or 1) * (recipe.settings.threads + 1)
    with ray_session(address, num_cpus=cpus) as ray:
        workers = _room(ray, workers, recipe)
        answers = _pipeline(ray, blocks, recipe, reading, workers)
        try:
            with _quiet_console():
                for table in answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
                    for block, content in zip(table["block"], table["content"], strict=True):
                        yield block.as_py(), pickle.loads(content.as_py())
        except Exception as error:  # Ray Data has several families of errors
            raise WorkerError(
                f"ray: workers could not go on ({first_line(error)}). Finished blocks are kept: the same command "
                "goes on with the rest."
            ) from error


def _pipeline(ray: Any, blocks: Iterable[tuple[int, Part]], recipe: Recipe, reading: Reading, workers: int) -> Any:
    """Lay out the pipeline; nothing is computed before its results are asked for."""
    data: Any = importlib.import_module("ray.data")
    arrow = import_pyarrow()
    # In Ray's store, which spills to disk: the descriptions of millions of images do not stay in this process.
    described = [ray.put(_row(arrow, number, part)) for number, part in blocks]
    dataset = data.from_arrow_refs(described)
    # Settings of this dataset, not of all datasets of the process.
    dataset.context.enable_progress_bars = False
    dataset.context.execution_options.preserve_order = True
    on_gpu = torch.device(recipe.settings.device).type == "cuda"
    pictures = dataset.map_batches(
        _read, batch_size=1, batch_format="pyarrow", num_cpus=_READER, fn_kwargs={"reading": reading}
    )
    return pictures.map_batches(
        _Worker,
        fn_constructor_args=(ray.put(recipe),),
        batch_size=1,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(size=workers),
        num_cpus=recipe.settings.threads,
        num_gpus=1 if on_gpu else None,
    )


def _read(table: Any, reading: Reading) -> Iterator[Any]:
    """Read the images of one block, batch by batch; runs in a task."""
    arrow = import_pyarrow()
    number, content = table["block"][0].as_py(), table["content"][0].as_py()
    for batch in reading.batches(pickle.loads(content), threads=2):
        yield _row(arrow, number, batch)


class _Worker:
    """Predicts batches; lives in an actor."""

    def __init__(self, recipe: Any) -> None:
        ray: Any = importlib.import_module("ray")
        made: Recipe = ray.get(recipe)
        torch.set_num_threads(made.settings.threads)
        self._predictor = made.predictor()

    def __call__(self, table: Any) -> Any:
        batch = pickle.loads(table["content"][0].as_py())
        return _row(import_pyarrow(), table["block"][0].as_py(), answer(self._predictor, batch))


def _row(arrow: Any, block: int, content: object) -> Any:
    schema = arrow.schema([("block", arrow.int64()), ("content", arrow.large_binary())])
    return arrow.table({"block": [block], "content": [pickle.dumps(content)]}, schema=schema)


def _room(ray: Any, workers: int | None, recipe: Recipe) -> int:
    """Return for how many workers there is room, or refuse more: Ray would wait for the room for ever."""
    there = ray.cluster_resources()
    threads = recipe.settings.threads
    # Reading takes cores as well, or nobody would ever have something to predict.
    room = int(there.get("CPU", 0) - 1) // threads
    if torch.device(recipe.settings.device).type == "cuda":
        room = min(room, int(there.get("GPU", 0)))
    if workers is None:
        workers = max(room, 1)
    if workers > room:
        raise OptionError(
            f"workers must be at most {room}, got {workers}: Ray has {there.get('CPU', 0):g} CPUs (one is for "
            f"reading, and each worker takes {threads}) and {there.get('GPU', 0):g} GPUs."
        )
    return workers


@contextlib.contextmanager
def _quiet_console() -> Iterator[None]:
    """Keep what Ray Data tells out of the terminal: its log files have it, and errors are raised as well."""
    handlers = [handler for handler in logging.getLogger("ray.data").handlers if handler.level == logging.INFO]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setLevel(logging.INFO)
