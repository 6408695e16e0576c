"""Images: the one way from files, bytes or numbers to pixels, and from pixels to the input of a model.

Whatever comes is either made an RGB array of bounded size, or refused with a reason. Datasets in folders, batch
prediction and the server all read images here, so that the same file gives the same pixels everywhere.
"""

from __future__ import annotations

import errno
import io
import math
import stat
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from findtta.errors import InputError, OptionError
from findtta.options import Count, Options, require_int, require_known

if TYPE_CHECKING:
    import torch

Pixels = NDArray[np.uint8]
Triple = tuple[float, float, float]

#: Mean and standard deviation of the RGB channels, by the dataset they were measured on.
NORMALIZATIONS: Mapping[str, tuple[Triple, Triple]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "half": ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    # The standard deviations are too small by a fifth, as in most published CIFAR-10 checkpoints.
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # Colour means only, on the 0..255 scale, with R and B in RGB order.
    "caffe": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255)),
}
#: How a normalization can be given, for help texts and errors.
NORMALIZATION = f"{', '.join(NORMALIZATIONS)}, or MEAN/STD such as 0.5,0.5,0.5/0.25,0.25,0.25"

#: What is read. Pillow knows many more formats, and each is more code that an attacker may reach.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
#: How files of these formats end.
SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
Interpolation = Literal["bilinear", "bicubic"]
INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# Errors that say something about a file; others, such as those of a disk or a network, may pass.
_OF_THE_FILE = frozenset(
    {
        errno.EACCES,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)
_ORIENTATION = 0x0112  # the EXIF tag
_MOST_RESIZED = 2**24  # pixels of an image that is resized before it is cropped


def find_normalization(wanted: str | tuple[Triple, Triple]) -> tuple[Triple, Triple]:
    """Return mean and standard deviation by name, or as given, which may be a text ``MEAN/STD``."""
    if isinstance(wanted, str) and "/" not in wanted:
        require_known("normalization", wanted, NORMALIZATIONS)
        return NORMALIZATIONS[wanted]
    parts: Any = [part.split(",") for part in wanted.split("/")] if isinstance(wanted, str) else wanted
    try:
        mean, std = ((float(red), float(green), float(blue)) for red, green, blue in parts)
    except (TypeError, ValueError):
        std = (0.0, 0.0, 0.0)
    if min(std) <= 0:
        raise OptionError(
            f"normalization must be {NORMALIZATION}: three numbers each, those of STD above 0, got {wanted!r}."
        )
    return mean, std


def require_crop(name: str, value: object) -> None:
    """Raise ``OptionError`` unless a value is a fraction of the shorter side that a crop can keep."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise OptionError(f"{name} must be above 0 and at most 1, got {value!r}.")


Crop = Annotated[float, require_crop]


class ImageError(InputError):
    """An image that cannot be classified; ``code`` is a short name for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self))


@dataclass(frozen=True)
class ImageLimits(Options):
    """How large an image may be.

    Attributes:
        max_bytes: Size of the file.
        max_pixels: Width times height; checked from the header, before anything is decoded.
    """

    max_bytes: Count = 20 * 2**20
    max_pixels: Count = 50_000_000


class _Silence:
    """``warnings.catch_warnings`` for threads: the first one in silences warnings, the last one out restores them.

    Filters belong to the whole process. Threads that each put back what they found would leave those of
    another behind, and silence for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)


_silence = _Silence()


def read_image(
    source: Path | bytes,
    limits: ImageLimits | None = None,
    preprocessing: Preprocessing | None = None,
    *,
    name: str | None = None,
) -> Pixels:
    """Read an image file as RGB: the one way from a file to the pixels that a model gets.

    Of an animation the first frame is taken; the EXIF orientation is applied; transparent pixels are blended
    with white; 16 bits per channel become 8; CMYK and grey become RGB.

    Args:
        source: A JPEG, PNG, WebP, GIF, BMP or TIFF file, or the bytes of one.
        limits: How large it may be.
        preprocessing: How it is brought to size; None leaves it as it is.
        name: What errors call it; by default its path, or "image".

    Returns:
        The image, uint8, ``(height, width, 3)``.

    Raises:
        ImageError: If it cannot be read, is not an image, is broken, or is too large.
    """
    with _opened(source, limits, name, whole=True) as image:
        image.seek(0)
        pixels = np.asarray(_to_rgb(image), dtype=np.uint8).copy()
    return preprocessing(pixels) if preprocessing else pixels


def image_size(
    source: Path | bytes, limits: ImageLimits | None = None, *, name: str | None = None
) -> tuple[int, int]:
    """Return height and width of an image as ``read_image`` gives it, mostly without decoding it."""
    with _opened(source, limits, name) as image:
        sideways = image.width != image.height and _orientation(image) >= 5
        return (image.width, image.height) if sideways else (image.height, image.width)


@contextmanager
def _opened(
    source: Path | bytes, limits: ImageLimits | None, name: str | None, *, whole: bool = False
) -> Iterator[Image.Image]:
    """Open an image within limits; any error until it is closed becomes an ``ImageError`` that names the image.

    If the ``whole`` image is wanted, its file is read at once, and no further than to the size that it had.
    """
    limits = limits or ImageLimits()
    try:
        # Pillow warns about size, which is checked here, and about odd metadata, which is not used.
        with _open_file(source, limits, whole) as file, _silence, Image.open(file, formats=FORMATS) as image:
            _require_pixels(image.width, image.height, limits)
            yield image
        return
    except ImageError as error:
        code, message = error.code, str(error).removeprefix("image: ")
    except UnidentifiedImageError:
        code, message = "not_an_image", f"it is not a readable image ({', '.join(FORMATS)})."
    except Image.DecompressionBombError:
        code, message = "too_many_pixels", f"it has more than the {limits.max_pixels:,} pixels that are accepted."
    except MemoryError:
        code, message = "too_many_pixels", "it does not fit into memory."
    except Exception as error:  # a decoder may raise anything on bytes made to break it
        if isinstance(error, OSError) and error.strerror:  # of the system, not of the decoder
            code = "unreadable" if error.errno in _OF_THE_FILE else "unavailable"
            message = f"cannot be read ({error.strerror})."
        else:
            reason = str(error) or type(error).__name__
            code, message = "broken", f"the file is broken or incomplete ({reason[:200]})."
    raise ImageError(code, f"{name or (source if isinstance(source, Path) else 'image')}: {message}") from None


def _open_file(source: Path | bytes, limits: ImageLimits, whole: bool) -> IO[bytes]:
    if isinstance(source, bytes):
        size = len(source)
    else:
        try:
            status = source.stat()
        except ValueError:  # a null byte in the name
            raise ImageError("unreadable", "image: a file cannot have this name.") from None
        if not stat.S_ISREG(status.st_mode):  # reading a pipe could wait forever
            raise ImageError("not_a_file", "image: it is a folder, a pipe or a device, not a file.")
        size = status.st_size
    if size > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"image: {size:,} bytes, and at most {limits.max_bytes:,} are accepted."
        )
    if size == 0:
        raise ImageError("empty", "image: there are no bytes; it must be the content of an image file.")
    if isinstance(source, bytes):
        return io.BytesIO(source)
    file = source.open("rb")
    if not whole:
        return file
    with file:
        content = file.read(size + 1)
    if len(content) > size:
        raise ImageError("too_many_bytes", f"image: the file grew beyond its {size:,} bytes while it was read.")
    return io.BytesIO(content)


def _require_pixels(width: int, height: int, limits: ImageLimits) -> None:
    if width * height > limits.max_pixels:
        raise ImageError(
            "too_many_pixels",
            f"image: {width:,} x {height:,} pixels, and at most {limits.max_pixels:,} in all are accepted.",
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    image = _upright(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        on_white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(on_white, image.convert("RGBA"))
    return image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # the EXIF data is broken, but the image is not
        return image


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # the EXIF data is broken, but the image is not
        return 1


def _to_eight_bits(image: Image.Image) -> Image.Image:
    # Whole numbers of 16 bits are exact in float32; in place, since images may be large.
    are_whole = image.mode.startswith("I")
    values: NDArray[np.floating[Any]] = np.array(image, dtype=np.float32 if are_whole else np.float64)
    if not np.isfinite(values).all():
        raise ImageError("not_finite", "image: it has pixels that are NaN or infinite.")
    # Files with floats are on the scale of their values: 0..1, 0..255 or 0..65535.
    top = 65535 if are_whole else 1 if values.max() <= 1 else 255 if values.max() <= 255 else 65535
    values *= 255 / top
    return Image.fromarray(np.clip(np.rint(values, out=values), 0, 255, out=values).astype(np.uint8))


def read_array(values: Any, limits: ImageLimits | None = None) -> Pixels:
    """Take numbers as an image.

    Args:
        values: An array, or nested lists, ``(height, width, 3)`` or ``(height, width)`` for grey: whole numbers
            from 0 to 255, or fractions from 0 to 1 (an array of floats, or lists with a fraction in them).
        limits: How large it may be.

    Returns:
        The image, uint8, ``(height, width, 3)``.

    Raises:
        ImageError: If it is something else.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise ImageError("not_an_array", "image: the rows of an array must be of one length.") from None
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise ImageError("not_an_array", f"image: an array must hold numbers, but holds {array.dtype}.")
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ImageError(
            "wrong_shape", f"image: an array must be (height, width, 3), got {tuple(np.shape(values))}."
        )
    _require_pixels(array.shape[1], array.shape[0], limits or ImageLimits())
    if not np.isfinite(array).all():
        raise ImageError("not_finite", "image: the array has values that are NaN or infinite.")
    top = 1 if array.dtype.kind == "f" else 255
    low, high = array.min(), array.max()
    if low < 0 or high > top:
        raise ImageError(
            "out_of_range",
            f"image: {'floats' if top == 1 else 'whole numbers'} must be from 0 to {top}, got from "
            f"{low:g} to {high:g}.",
        )
    return array.astype(np.uint8) if top == 255 else np.rint(array * 255).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Options):
    """How an image of any size becomes an input of a model, as torchvision and timm do for evaluation.

    The shorter side is resized (antialiased) to ``resize``, then the centre is cropped. An image that has the
    size of the result already is left as it is: it counts as prepared, as the images of ImageNet-C are.

    Attributes:
        size: Height and width of the result.
        resize: Length that the shorter side is resized to; None means what just covers the result.
        interpolation: ``"bilinear"`` or ``"bicubic"``.
    """

    size: tuple[int, int]
    resize: int | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.size) != 2 or not all(isinstance(side, int) and side >= 1 for side in self.size):
            raise OptionError(f"image_size must be a side or (height, width) in pixels, got {self.size!r}.")
        if self.resize is not None and self.resize < max(self.size):
            raise OptionError(f"resize must be at least image_size, which is {self.size}, got {self.resize}.")

    @classmethod
    def square(cls, side: int, crop: float = 1.0, interpolation: Interpolation = "bilinear") -> Self:
        """Return the preprocessing that keeps a fraction of the shorter side, as timm's ``crop_pct`` says it."""
        require_int("image_size", side)
        require_crop("crop", crop)
        return cls(size=(side, side), resize=math.floor(side / crop), interpolation=interpolation)

    @property
    def crop(self) -> float:
        """Fraction of the shorter side that the centre crop keeps."""
        return min(self.size) / self.resize if self.resize else 1.0

    @classmethod
    def from_options(cls, image_size: int | Sequence[int] | None, resize: int | None) -> Self | None:
        """Return the preprocessing that options of a dataset ask for, or None for images used as they are."""
        if image_size is None:
            if resize is not None:
                raise OptionError(f"resize is used together with image_size, but only resize={resize} is given.")
            return None
        size: Any = tuple(image_size) if isinstance(image_size, list | tuple) else (image_size, image_size)
        return cls(size=size, resize=resize)

    def __call__(self, image: Pixels) -> Pixels:
        """Return an RGB image, uint8 ``(height, width, 3)``, at the size of the result."""
        height, width = image.shape[:2]
        out_height, out_width = self.size
        if (height, width) == self.size:
            return image
        # The size of the whole image after resizing, as torchvision rounds it.
        if self.resize is None:
            scale = max(out_height / height, out_width / width)
            resized = (max(out_height, round(height * scale)), max(out_width, round(width * scale)))
        elif height <= width:
            resized = (self.resize, int(self.resize * width / height))
        else:
            resized = (int(self.resize * height / width), self.resize)
        top, left = round((resized[0] - out_height) / 2), round((resized[1] - out_width) / 2)
        whole, filter = Image.fromarray(image), INTERPOLATIONS[self.interpolation]
        if resized[0] * resized[1] <= _MOST_RESIZED:
            scaled = whole.resize(resized[::-1], filter).crop((left, top, left + out_width, top + out_height))
        else:
            # Of a long and thin image only what is kept is computed. The result differs from that of the whole by
            # rounding, since Pillow takes a box in single precision.
            by_height, by_width = height / resized[0], width / resized[1]
            right, bottom = (left + out_width) * by_width, (top + out_height) * by_height
            box = (left * by_width, top * by_height, min(right, width), min(bottom, height))
            scaled = whole.resize((out_width, out_height), filter, box=box)
        return np.asarray(scaled, dtype=np.uint8)


def to_input(images: NDArray[np.uint8], device: torch.device | str = "cpu") -> torch.Tensor:
    """Return uint8 images ``(n, height, width, 3)`` as a float batch ``(n, 3, height, width)`` in [0, 1].

    The batch keeps the order of the bytes (channels last), in which convolutions are fastest.
    """
    import torch  # here, since the HTTP side of the server reads images without it

    # Arrays from another process may be read-only, which torch warns about.
    writable = np.require(images, requirements=("C", "W"))
    return torch.from_numpy(writable).to(device).permute(0, 3, 1, 2).float().div_(255)
