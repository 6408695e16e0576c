"""The steps of an adaptive layer in C, for float32 feature maps on the CPU, where a C compiler is found.

In a small model, dispatching the few dozen operations of a layer on small tables costs more than computing them;
in a large one, each of them reads and writes memory again. ``native.c`` needs no temporary maps. It is compiled
for this CPU when first needed, into the user's cache, and called by :mod:`ctypes` with raw pointers: no build
step at installation, and no dependence on PyTorch's binary interface. Without a compiler, on other devices and
dtypes, in graphs and where gradients are recorded, PyTorch's operations compute the same.

``FINDTTA_NATIVE=0`` turns it off; :func:`status` says whether it is in use, and if not, why.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from findtta._io import atomic_write, cache_folder
from findtta.functional.tracing import traced

SOURCE = Path(__file__).with_name("native.c")
VARIABLE = "FINDTTA_NATIVE"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno")
PATIENCE_S = 120.0  # for the compiler, which takes about a second

_POINTER, _INDEX, _FLAG, _NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SIZES = (_INDEX, _INDEX, _INDEX, _FLAG)  # samples, channels, positions, whether channels are last
# Input, output, sizes, source mean and variance, weight, bias, eps.
_LAYER = (_POINTER, _POINTER, *_SIZES, _POINTER, _POINTER, _POINTER, _POINTER, _NUMBER)
#: Result and arguments of every function; all but the first are given the number of threads last.
SIGNATURES = {
    "use_threads": (None, (_POINTER,)),
    "instance_moments": (None, (_POINTER, *_SIZES, _POINTER, _POINTER, _FLAG)),
    "normalize": (
        None,
        (_POINTER, _POINTER, *_SIZES, _POINTER, _POINTER, _FLAG, _POINTER, _POINTER, _NUMBER, _FLAG),
    ),
    "partition": (_FLAG, (_POINTER, _INDEX, _INDEX, _NUMBER, _POINTER, _FLAG)),
    "group_moments": (_FLAG, (_POINTER, _POINTER, _INDEX, _INDEX, _POINTER, _POINTER, _POINTER, _FLAG)),
    "find": (_FLAG, (*_LAYER, _NUMBER, _NUMBER, _POINTER, _POINTER, _FLAG)),
    "find_soft": (_FLAG, (*_LAYER, _POINTER, _FLAG, _FLAG, _NUMBER, *[_POINTER] * 6, _FLAG)),
}

#: Source mean and variance, weight and bias of a layer, and eps.
Layer = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, float]

#: Constants of soft.py that native.c is given, in its order.
SOFT_CONSTANTS = (
    "LEAST_SIMILARITY",
    "NO_DRIFT",
    "LEAST_DRIFT",
    "LATE_TRUST",
    "ALLOWED_SHARE",
    "CHANCE_SHARE",
    "GUARD_SHARPNESS",
)

_lock = threading.Lock()
_library: Any = None
_problem: str | None = None  # why there is no library
_off = 0  # how many blocks have turned it off


def status() -> str:
    """Say whether the compiled functions are in use, and if not, why."""
    return "in use" if _load() else f"not in use: {_problem}"


@contextmanager
def disabled() -> Iterator[None]:
    """Compute with PyTorch's operations inside the block, in all threads."""
    global _off
    with _lock:
        _off += 1
    try:
        yield
    finally:
        with _lock:
            _off -= 1


def takes(tensor: Tensor) -> bool:
    """Tell whether the functions below can be given a tensor here: a real one, with nobody to see operations."""
    return (
        not traced()
        and type(tensor) is Tensor
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (torch.is_grad_enabled() or tensor.is_neg() or _off)
        # A trace or a mode that looks at operations would not see these.
        and not (torch._C._is_tracing() or torch._C._len_torch_dispatch_stack())
        and tensor.numel() > 0
        and (_library is not None or _load())
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _is_row(values: Tensor | None, length: int) -> bool:
    """Tell whether the functions can read a vector, such as a layer's weight; None if it has none."""
    return values is None or (
        values.dtype is torch.float32 and values.is_cpu and values.shape == (length,) and values.is_contiguous()
    )


def _layout(features: Tensor) -> tuple[int, int, int, bool] | None:
    """Return samples, channels, positions and whether channels are last; None for other layouts."""
    shape = features.shape
    batch, channels = shape[0], shape[1]
    positions = features.numel() // (batch * channels)
    if features.is_contiguous():
        return batch, channels, positions, positions == 1
    if features.ndim == 4 and features.is_contiguous(memory_format=torch.channels_last):
        return batch, channels, positions, True
    if features.ndim == 5 and features.is_contiguous(memory_format=torch.channels_last_3d):
        return batch, channels, positions, True
    return None


def instance_moments(features: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute :func:`findtta.functional.instance_moments`, or return None if that is not possible."""
    layout = _layout(features) if takes(features) else None
    if layout is None:
        return None
    mean, variance = torch.empty(layout[:2]), torch.empty(layout[:2])
    _library.instance_moments(
        features.data_ptr(), *layout, mean.data_ptr(), variance.data_ptr(), torch.get_num_threads()
    )
    return mean, variance


def normalize(
    features: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    overwrite: bool,
) -> Tensor | None:
    """Compute :func:`findtta.functional.normalize`, or return None if that is not possible."""
    layout = _layout(features) if takes(features) else None
    if layout is None:
        return None
    batch, channels = layout[:2]
    per_sample = mean.ndim == 2
    shape = (batch, channels) if per_sample else (channels,)
    for statistic in (mean, variance):
        if not (takes(statistic) and statistic.shape == shape and statistic.is_contiguous()):
            return None
    if not (_is_row(weight, channels) and _is_row(bias, channels)):
        return None
    result = features if overwrite else torch.empty_like(features)
    _library.normalize(
        features.data_ptr(),
        result.data_ptr(),
        *layout,
        mean.data_ptr(),
        variance.data_ptr(),
        per_sample,
        _pointer(weight),
        _pointer(bias),
        eps,
        torch.get_num_threads(),
    )
    return result


def partition(descriptors: Tensor, norm_floor: float) -> Tensor | None:
    """Compute :func:`findtta.functional.partition` of ``(B, C)``, or return None if that is not possible."""
    if not (takes(descriptors) and descriptors.is_contiguous()):
        return None
    batch, channels = descriptors.shape
    labels = torch.empty(batch, dtype=torch.int64)
    done = _library.partition(
        descriptors.data_ptr(), batch, channels, norm_floor, labels.data_ptr(), torch.get_num_threads()
    )
    return labels if done else None


def group_moments(mean: Tensor, variance: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute :func:`findtta.functional.group_moments` (biased), or return None if that is not possible."""
    if not (takes(mean) and takes(variance) and mean.is_contiguous() and variance.is_contiguous()):
        return None
    batch, channels = shape = mean.shape
    if variance.shape != shape or labels.shape != (batch,) or labels.dtype is not torch.int64:
        return None
    if not (labels.is_cpu and labels.is_contiguous()):
        return None
    group_mean, group_variance = torch.empty(shape), torch.empty(shape)
    done = _library.group_moments(
        mean.data_ptr(),
        variance.data_ptr(),
        batch,
        channels,
        labels.data_ptr(),
        group_mean.data_ptr(),
        group_variance.data_ptr(),
        torch.get_num_threads(),
    )
    return (group_mean, group_variance) if done else None


def find(
    features: Tensor, layer: Layer, alpha: float, norm_floor: float, overwrite: bool, moments_too: bool
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Normalise as a layer of FIND does, or return None if that is not possible.

    Returns:
        The normalised map; labels, ``(B,)``; and if wanted, means and variances of the samples, ``(2, B, C)``.
    """
    arguments = _arguments(features, layer, overwrite)
    if arguments is None:
        return None
    result, batch, channels, begin = arguments
    labels = torch.empty(batch, dtype=torch.int64)
    moments = torch.empty((2, batch, channels)) if moments_too else None
    done = _library.find(*begin, alpha, norm_floor, _pointer(moments), labels.data_ptr(), torch.get_num_threads())
    return (result, labels, moments) if done else None


def find_soft(
    features: Tensor,
    layer: Layer,
    options: tuple[float, ...],
    depth: int,
    layers: int,
    log_threshold: float,
    total: Tensor | None,
    earlier: Tensor | None,
    overwrite: bool,
    moments_too: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None] | None:
    """Normalise as a layer of find-soft does, or return None if that is not possible.

    Args:
        features: Feature map.
        layer: The tensors of the layer.
        options: What ``SoftOptions`` of native.c lists.
        depth: 0, 1 in the middle of the model, or 2 in its late layers.
        layers: The number of layers so far, this one included.
        log_threshold: Logarithm of the drift at which the gate is half open.
        total: Drift summed over the layers before, ``(B,)``; None in the first.
        earlier: Mean of the common shares of the middle, scalar; needed at depth 2.
        overwrite: Write the result over ``features``.
        moments_too: Whether the moments of the samples are wanted.

    Returns:
        The normalised map; drift of the samples, ``(B,)``; the new sum of it, ``(B,)``; the common share, scalar,
        but at depth 0; and if wanted, means and variances of the samples, ``(2, B, C)``.
    """
    arguments = _arguments(features, layer, overwrite)
    if arguments is None or not _is_row(total, len(features)):
        return None
    result, batch, channels, begin = arguments
    drift, new_total = torch.empty(batch), torch.empty(batch)
    share = torch.empty(()) if depth else None
    moments = torch.empty((2, batch, channels)) if moments_too else None
    done = _library.find_soft(
        *begin,
        _floats(options),
        depth,
        layers,
        log_threshold,
        _pointer(total),
        _pointer(earlier),
        _pointer(moments),
        drift.data_ptr(),
        new_total.data_ptr(),
        _pointer(share),
        torch.get_num_threads(),
    )
    return (result, drift, new_total, share, moments) if done else None


@functools.lru_cache
def _floats(values: tuple[float, ...]) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * len(values))(*values)


def _arguments(features: Tensor, layer: Layer, overwrite: bool) -> tuple[Tensor, int, int, tuple[Any, ...]] | None:
    """Return the result's tensor, samples, channels, and the first arguments of a function for a whole layer."""
    layout = _layout(features) if takes(features) else None
    if layout is None:
        return None
    batch, channels = layout[:2]
    mean, variance, weight, bias, eps = layer
    if (
        mean is None
        or variance is None
        or not (
            _is_row(mean, channels)
            and _is_row(variance, channels)
            and _is_row(weight, channels)
            and _is_row(bias, channels)
        )
    ):
        return None
    result = features if overwrite else torch.empty_like(features)
    return (
        result,
        batch,
        channels,
        (
            features.data_ptr(),
            result.data_ptr(),
            *layout,
            mean.data_ptr(),
            variance.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            eps,
        ),
    )


def _load() -> bool:
    """Compile the library, unless an earlier process has, and load it, once; tell whether that has worked."""
    global _library, _problem
    with _lock:
        if _library is None and _problem is None:
            try:
                _library = _declare(_build())
            except (OSError, subprocess.SubprocessError, AttributeError) as error:
                _problem = _first_line(error)
        return _library is not None


def _build() -> ctypes.CDLL:
    if os.environ.get(VARIABLE) == "0":
        raise OSError(f"{VARIABLE}=0")
    if os.name != "posix":
        raise OSError("only for Linux and macOS")
    cpu = _cpu()
    flags = [*FLAGS, *(["-march=native"] if cpu else [])]
    key = repr((SOURCE.read_text(), flags, platform.machine(), platform.libc_ver(), cpu))
    path = cache_folder() / "native" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(path) as partial:
                _compile(flags, partial)
        if not _is_ours(path):
            raise OSError(f"{path} can be written by others")
        return ctypes.CDLL(str(path))
    except OSError:  # the cache cannot be written to, or is no place for programs
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / path.name
            _compile(flags, path)
            return ctypes.CDLL(str(path))


def _compile(flags: list[str], path: Path) -> None:
    chosen = shlex.split(os.environ.get("CC", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    if not chosen:
        raise FileNotFoundError(f"no C compiler ({', '.join(COMPILERS)}) is installed")
    command = [*chosen, *flags, str(SOURCE), "-o", str(path), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)


def _cpu() -> str | None:
    """Describe what the CPU can do; None where that is not known, and code must fit all of its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith(("flags", "Features"))), None)


def _is_ours(path: Path) -> bool:
    states = [path.stat(), path.parent.stat()]
    return all(state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022 for state in states)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    try:
        # Looked up through torch, so that both share one pool of threads.
        torch_library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        library.use_threads(ctypes.cast(torch_library.GOMP_parallel, ctypes.c_void_p))
    except (OSError, AttributeError, StopIteration):
        pass  # torch does not use OpenMP here: one thread
    return library


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed: {(error.stderr.strip().splitlines() or [''])[0]}"
    return (str(error).splitlines() or [type(error).__name__])[0]
