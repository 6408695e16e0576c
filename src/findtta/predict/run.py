"""Predicting an input from end to end, and going on where an earlier run stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from findtta._processes import usable_cores
from findtta.algorithms.find_star import FINDStar
from findtta.errors import InputError, OptionError
from findtta.predict.batches import Answers, Reading, answer
from findtta.predict.choice import Choice, choose
from findtta.predict.cluster import compute_on_ray
from findtta.predict.output import Output
from findtta.predict.settings import Recipe, Settings, torch_threads
from findtta.predict.sources import Part, Source, open_source
from findtta.predictor import Predictor
from findtta.registry import load_method

_MOST_READERS = 8

#: Told how many images are done, and how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """What came of it.

    Attributes:
        images: How many the input has.
        skipped: How many of them could not be read, in earlier runs or now; their reasons are in ``errors``.
        blocks_before: Blocks that were there already.
        blocks_now: Blocks that were computed.
        seconds: How long it took.
        engine: Who computed: ``"local"`` or ``"ray"``.
        workers: How many workers; None if a cluster was to decide.
        reason: Why they did.
        output: The folder of answers.
    """

    images: int
    skipped: int
    blocks_before: int
    blocks_now: int
    seconds: float
    engine: str
    workers: int | None
    reason: str
    output: Path

    @property
    def predictions(self) -> Path:
        """The folder with one file of answers per block."""
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
    engine: str | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    progress: Progress | None = None,
    announce: Callable[[Choice], None] | None = None,
) -> Summary:
    """Predict all images of an input; what an earlier run has finished is not computed again.

    Args:
        source: A folder, a list of paths, or Parquet files; see ``open_source``.
        output: The folder of answers: new, or begun with the same settings and input.
        settings: What decides the answers.
        engine: ``"local"`` for this process, ``"ray"`` for Ray Data; by default by ``workers``, ``ray_address``
            and the number of images.
        workers: How many workers of Ray.
        ray_address: The Ray cluster; by default one is started on this machine, and stopped again.
        progress: Called with the number of images done and of all images.
        announce: Called with who computes, before it begins.

    Returns:
        What came of it.

    Raises:
        InputError: If the input cannot be used.
        OptionError: If a setting cannot, or the output was made with others.
    """
    began = time.monotonic()
    settings = settings or Settings()
    _require_orderless(settings)
    with torch_threads(settings.threads), open_source(source, settings.image_column) as images:
        recipe = Recipe(settings, settings.load_model())
        predictor = recipe.predictor()
        reading = recipe.reading(predictor)
        _require_enough(predictor, images, settings)
        out = Output(
            Path(output),
            {**recipe.identity(predictor), "input": images.kind, "images": len(images), "listing": images.digest},
            predictor.labels,
            top=settings.top,
            format=settings.format or "",
        )
        blocks = range(-(-len(images) // settings.block))
        todo = [block for block in blocks if not out.is_done(block)]
        left = sum(_length(block, images, settings) for block in todo)
        choice = choose(left, settings, engine=engine, workers=workers, ray_address=ray_address)
        if announce:
            announce(choice)
        if todo:
            recipe = _calibrated(recipe, predictor, reading, images)
            parts = ((block, _part(block, images, settings)) for block in todo)
            if choice.engine == "ray":
                answers = compute_on_ray(parts, recipe, reading, workers=choice.workers, address=ray_address)
            else:
                answers = _compute_here(parts, predictor, reading)
            with contextlib.closing(answers):  # stops Ray, if it was started, whatever happens here
                _write_all(answers, out, images, settings, len(images) - left, progress)
        return Summary(
            images=len(images),
            skipped=out.count_unreadable(),
            blocks_before=len(blocks) - len(todo),
            blocks_now=len(todo),
            seconds=time.monotonic() - began,
            engine=choice.engine,
            workers=choice.workers,
            reason=choice.reason,
            output=out.folder,
        )


def _require_orderless(settings: Settings) -> None:
    method = load_method(settings.method)
    if method.stateful and not issubclass(method, FINDStar):
        raise OptionError(
            f"method: {settings.method!r} learns from each batch, so that an answer depends on all images before "
            "it, and blocks that are computed apart, or after a restart, have not seen those. Take a method that "
            "keeps nothing (find, find-soft, tbn, alpha-bn, iabn, source) or find-star, or call findtta.adapt in "
            "a loop of your own."
        )


def _require_enough(predictor: Predictor, images: Source, settings: Settings) -> None:
    adapted = predictor.adapted
    batches = -(-len(images) // settings.batch_size)
    if isinstance(adapted, FINDStar) and batches < adapted.options.cold_start:
        raise InputError(
            f"input: find-star chooses its layers on {adapted.options.cold_start} batches, but {len(images)} "
            f"images are {batches} of {settings.batch_size}. Take the method find, or give the option "
            f"cold_start={batches}."
        )


def _calibrated(recipe: Recipe, predictor: Predictor, reading: Reading, images: Source) -> Recipe:
    """Let find-star choose its layers on the first batches of the input, whatever blocks are still to do."""
    adapted = predictor.adapted
    if not isinstance(adapted, FINDStar):
        return recipe
    cold_start: int = adapted.options.cold_start
    start = 0
    while adapted.batches_seen < cold_start and start < len(images):
        stop = start + reading.batch_size * (cold_start - adapted.batches_seen)
        for batch in reading.batches(images.part(start, stop), _readers()):
            predictor(batch.pictures)
        start = stop  # go on only if whole batches were unreadable
    if adapted.batches_seen < cold_start:
        raise InputError(
            f"input: find-star chooses its layers on {cold_start} batches, but only {adapted.batches_seen} have "
            "an image that can be read. Take the method find."
        )
    state = {name: tensor.cpu() for name, tensor in adapted.state_dict().items()}
    return Recipe(recipe.settings, recipe.model, state)


def _compute_here(
    blocks: Iterator[tuple[int, Part]], predictor: Predictor, reading: Reading
) -> Generator[tuple[int, Answers], None, None]:
    for block, part in blocks:
        for batch in reading.batches(part, _readers()):
            yield block, answer(predictor, batch)


def _write_all(
    answers: Iterator[tuple[int, Answers]],
    out: Output,
    images: Source,
    settings: Settings,
    done: int,
    progress: Progress | None,
) -> None:
    """Write each block when its last batch has arrived."""
    waiting: dict[int, list[Answers]] = {}
    for block, batch in answers:
        waiting.setdefault(block, []).append(batch)
        done += batch.positions
        if sum(each.positions for each in waiting[block]) == _length(block, images, settings):
            out.write(block, waiting.pop(block))
        if progress:
            progress(done, len(images))
    if waiting:
        raise InputError(
            f"input: it became shorter while it was read; blocks {sorted(waiting)} are missing images."
        )


def _part(block: int, images: Source, settings: Settings) -> Part:
    start = block * settings.block
    return images.part(start, start + _length(block, images, settings))


def _length(block: int, images: Source, settings: Settings) -> int:
    return min(settings.block, len(images) - block * settings.block)


def _readers() -> int:
    return min(usable_cores(), _MOST_READERS)
