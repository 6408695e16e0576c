"""Corruptions of images: the fifteen of the benchmark and four more, at five severities."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta._io import read_toml
from findtta.data.corruptions import blur, digital, noise, weather
from findtta.data.dataset import ALL_CORRUPTIONS, SEVERITIES, Images, are_images, describe
from findtta.data.randomness import sample_keys
from findtta.errors import InputError, OptionError
from findtta.options import require_int, require_known
from findtta.plugins import Kind, public_name, takes

__all__ = ["CORRUPTION", "CORRUPTIONS", "TABLES", "apply", "are_known", "corrupt", "steps"]

#: The function of each corruption, which has its name. It takes uint8 images, the keys of their random numbers by
#: purpose, and the constants of a severity.
CORRUPTIONS: Mapping[str, Callable[..., Images]] = {
    name: getattr(family, name)
    for name in ALL_CORRUPTIONS
    for family in (noise, blur, weather, digital)
    if hasattr(family, name)
}
#: A corruption of others has no constants here, and takes the severity in their place.
CORRUPTION = Kind(
    "corruption", CORRUPTIONS, "a function of (images, keys, severity)", lambda found: takes(found, 3)
)
#: The constants of ``constants.toml``: table to corruption to the constants of each severity.
TABLES: Mapping[str, Mapping[str, list[list[float]]]] = read_toml(Path(__file__).with_name("constants.toml"))
#: Images whose shorter side is below this get the constants of CIFAR unless told otherwise.
IMAGENET_FROM = 96
SMALLEST_SIDE = 32
# Elements of the images worked on at once by a thread: few enough for its caches and for bounded memory.
ELEMENTS_AT_ONCE = 64 * 32 * 32 * 3


def corrupt(
    images: Images,
    name: str,
    severity: int = 5,
    *,
    seed: int = 0,
    index: Iterable[int] | NDArray[Any] | None = None,
    constants: str | None = None,
    threads: int | None = None,
) -> Images:
    """Corrupt images as CIFAR-10-C, CIFAR-100-C and ImageNet-C do.

    What becomes of an image depends on its pixels, the seed, its index, the corruption, the severity and
    the constants; not on the other images, their order or the number of threads.

    Args:
        images: uint8 array of shape (n, height, width, 3), sides of 32 or more. It is not changed.
        name: One of the fifteen corruptions of the benchmark or of the four extra ones (see
            ``MAIN_CORRUPTIONS`` and ``EXTRA_CORRUPTIONS`` in ``findtta.data.dataset``), or ``file.py:NAME``; or
            several that are applied one after the other, such as ``"fog+gaussian_noise"``.
        severity: From 1 to 5.
        seed: Any integer. Another seed draws other noise, angles, flakes and so on.
        index: For each image the number its random draws hang on, at least 0; by default its row. Pass
            the row in the dataset when corrupting part of one.
        constants: ``"cifar"`` or ``"imagenet"``. By default those of CIFAR for images whose shorter side is
            below 96 pixels, else those of ImageNet.
        threads: How many threads work; by default as many as PyTorch uses.

    Returns:
        uint8 array of the same shape. (ImageNet-C as published was saved as JPEG of quality 85 after this;
        that is left to the caller.)

    Raises:
        UnknownNameError: If there is no such corruption or table of constants.
        OptionError: If the severity or the number of threads is out of range.
        InputError: If the images or the index are of a wrong type, shape or size.

    Example:
        >>> import numpy as np
        >>> photo = np.full((1, 32, 32, 3), 100, np.uint8)
        >>> int(corrupt(photo, "brightness", 2)[0, 0, 0, 0])
        125
    """
    return apply(steps(name), images, severity, seed=seed, index=index, constants=constants, threads=threads)


def _parts(name: str) -> list[str]:
    """Return ``["mine.py:haze", "fog"]`` for ``"mine.py:haze+fog"``; the path of a file may contain a plus."""
    place, colon, names = name.rpartition(":")
    first, *others = names.split("+")
    return [place + colon + first, *others]


def are_known(name: str) -> bool:
    """Tell whether a name may be that of a corruption or of several, without importing anything."""
    return all(map(CORRUPTION.knows, _parts(name)))


def steps(name: str) -> dict[str, Callable[..., Images]]:
    """Return the functions of ``"fog+gaussian_noise"``, or of a single corruption, by name and in this order."""
    parts = _parts(name)
    if len(set(parts)) < len(parts):
        raise OptionError(f"corruption {name!r} must name each corruption once: they draw the same numbers.")
    return {public_name(part): CORRUPTION.load(part) for part in parts}


def apply(
    functions: Mapping[str, Callable[..., Images]],
    images: Images,
    severity: int,
    *,
    seed: int,
    index: Iterable[int] | NDArray[Any] | None = None,
    constants: str | None = None,
    threads: int | None = None,
) -> Images:
    """Corrupt images with the functions of :func:`steps`, one after the other, as :func:`corrupt` does."""
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise OptionError(f"severity must be a whole number from 1 to 5, got {severity!r}.")
    if threads is not None:
        require_int("threads", threads)
    _check_images(images)
    rows = _checked_index(index, len(images))
    table = constants or ("cifar" if min(images.shape[1:3]) < IMAGENET_FROM else "imagenet")
    require_known("constants", table, TABLES)
    numbers = {
        name: TABLES[table][name][severity - 1] if name in CORRUPTIONS else [int(severity)] for name in functions
    }
    result = np.empty(images.shape, np.uint8)

    def work(part: slice) -> None:
        made = np.array(images[part])  # a copy, so that a function may change it
        shape = made.shape
        for name, function in functions.items():
            keys = partial(sample_keys, seed, rows[part], name, int(severity))
            made = function(made, keys, *numbers[name])
            if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.shape != shape:
                raise InputError(
                    f"corruption {name!r} must return uint8 images of shape {shape}, got {describe(made)}."
                )
        result[part] = made

    size = max(1, ELEMENTS_AT_ONCE // max(1, images[:1].size))
    parts = [slice(start, start + size) for start in range(0, len(images), size)]
    # The first part goes before the threads start, so that tables all share are made only once.
    for part in parts[:1]:
        work(part)
    if not threads:
        import torch

        threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, parts[1:]))  # the list brings up what a thread raised
    return result


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray) or not are_images(images):
        raise InputError(
            "images must be a NumPy array of uint8 (0 to 255) and shape (n, height, width, 3), got "
            f"{describe(images)}; for a float tensor of shape (n, 3, height, width) with values from 0 to 1, pass "
            "(255 * images).round().byte().permute(0, 2, 3, 1).numpy()."
        )
    if min(images.shape[1:3]) < SMALLEST_SIDE:
        raise InputError(
            f"images must be at least {SMALLEST_SIDE} pixels high and wide, got "
            f"{images.shape[1]} x {images.shape[2]}; enlarge them first."
        )


def _checked_index(index: Iterable[int] | NDArray[Any] | None, count: int) -> NDArray[np.int64]:
    rows = np.arange(count) if index is None else np.asarray(index)
    whole = np.issubdtype(rows.dtype, np.integer) or not count
    if rows.shape != (count,) or not whole or rows.min(initial=0) < 0:
        raise InputError(
            f"index must hold one integer of at least 0 per image, {count} in all, got {describe(rows)}, and "
            f"{rows.min(initial=0)} as the least."
        )
    return rows.astype(np.int64)
