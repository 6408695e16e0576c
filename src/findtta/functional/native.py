"""The steps of an adaptive layer in C, for float32 feature maps on the CPU, where a C compiler is found.

In a small model, dispatching the few dozen operations of a layer on small tables costs more than computing them;
in a large one, each of them reads and writes memory again. ``native.c`` needs no temporary maps. It is compiled
for this CPU when first needed, into the user's cache, and called by :mod:`ctypes` with raw pointers: no build
step at installation, and no dependence on PyTorch's binary interface. Without a compiler, on other devices and
dtypes, in graphs and where gradients are recorded, PyTorch's operations compute the same.

``FINDTTA_NATIVE=0`` turns it off; :func:`status` says whether it is in use, and if not, why.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from findtta._io import atomic_write, cache_folder
from findtta.functional.graph_mode import traced

SOURCE = Path(__file__).with_name("native.c")
VARIABLE = "FINDTTA_NATIVE"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno")
PATIENCE_S = 120.0  # for the compiler, which takes about a second

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

# What a function is given: one structure, packed here, since ctypes converts single arguments slowly.
_MAP = "PPllll"  # input, output, samples, channels, positions, whether channels are last
_LAYER = _MAP + "PPPPPlf"  # source mean and variance, weight, bias, moments, threads, eps
ARGUMENTS = {
    name: struct.Struct(format)
    for name, format in {
        "instance_moments": _MAP + "PPl",
        "normalize": _MAP + "PPlPPfl",
        "partition": "PlllPf",
        "group_moments": "PPlllPPP",
        "find": _LAYER + "Pff",
        "find_soft": _LAYER + "PPPlllf" + "f" * (4 + len(SOFT_CONSTANTS)),
        "find_domains": _LAYER + "PPPPPPPPPPllfffff",
    }.items()
}

#: Source mean and variance, weight and bias of a layer.
Rows = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

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


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def pointers(*tensors: Tensor) -> tuple[int, ...] | None:
    """Return where tensors are, which must be kept meanwhile; None if the functions cannot read one of them."""
    if not all(takes(tensor) and tensor.is_contiguous() for tensor in tensors):
        return None
    return tuple(tensor.data_ptr() for tensor in tensors)


def _is_row(values: Tensor | None, length: int) -> bool:
    """Tell whether the functions can read a vector, such as a layer's weight; None if it has none."""
    return values is None or (
        values.dtype is torch.float32 and values.is_cpu and values.shape == (length,) and values.is_contiguous()
    )


def _layout(features: Tensor) -> tuple[int, int, int, bool] | None:
    """Return samples, channels, positions and whether channels are last; None for other layouts."""
    batch, channels, *_ = features.shape
    positions = features.numel() // (batch * channels)
    if features.is_contiguous():
        return batch, channels, positions, positions == 1
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(features.ndim)
    if channels_last is not None and features.is_contiguous(memory_format=channels_last):
        return batch, channels, positions, True
    return None


def instance_moments(features: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute :func:`findtta.functional.instance_moments`, or return None if that is not possible."""
    layout = _layout(features) if takes(features) else None
    if layout is None:
        return None
    mean, variance = torch.empty(layout[:2]), torch.empty(layout[:2])
    arguments = (features.data_ptr(), 0, *layout, mean.data_ptr(), variance.data_ptr(), torch.get_num_threads())
    _library.instance_moments(ARGUMENTS["instance_moments"].pack(*arguments))
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
    arguments = (
        *(features.data_ptr(), result.data_ptr(), *layout, mean.data_ptr(), variance.data_ptr(), per_sample),
        *(_pointer(weight), _pointer(bias), eps, torch.get_num_threads()),
    )
    _library.normalize(ARGUMENTS["normalize"].pack(*arguments))
    return result


def partition(descriptors: Tensor, norm_floor: float) -> Tensor | None:
    """Compute :func:`findtta.functional.partition` of ``(B, C)``, or return None if that is not possible."""
    if not (takes(descriptors) and descriptors.is_contiguous()):
        return None
    batch, channels = descriptors.shape
    labels = torch.empty(batch, dtype=torch.int64)
    sizes = (batch, channels, torch.get_num_threads())
    arguments = (descriptors.data_ptr(), *sizes, labels.data_ptr(), norm_floor)
    return labels if _library.partition(ARGUMENTS["partition"].pack(*arguments)) else None


def group_moments(mean: Tensor, variance: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute :func:`findtta.functional.group_moments` (biased), or return None if that is not possible."""
    if not (takes(mean) and takes(variance) and mean.is_contiguous() and variance.is_contiguous()):
        return None
    batch, channels = shape = mean.shape
    if variance.shape != shape or labels.shape != (batch,) or labels.dtype is not torch.int64:
        return None
    if not (labels.is_cpu and labels.is_contiguous()):
        return None
    results = torch.empty(shape), torch.empty(shape)
    sizes = (batch, channels, torch.get_num_threads())
    tensors = (tensor.data_ptr() for tensor in (labels, *results))
    arguments = ARGUMENTS["group_moments"].pack(mean.data_ptr(), variance.data_ptr(), *sizes, *tensors)
    return results if _library.group_moments(arguments) else None


class Call(NamedTuple):
    """A call of one of the functions below, which normalise a feature map as a whole layer does.

    Attributes:
        result: Where the normalised map is written to.
        moments: Where means and variances of the samples are written to, ``(2, B, C)``, if they are wanted.
        arguments: What ``Layer`` of native.c lists.
        rows: The layer's, which ``arguments`` point to: some are made for this call.
    """

    result: Tensor
    moments: Tensor | None
    arguments: tuple[Any, ...]
    rows: Rows


class Layer:
    """What the functions are given of a layer, whose vectors are looked at again only when they have moved.

    Several threads may use it at once: what one of them has checked holds for the others.
    """

    def __init__(self, eps: float) -> None:
        self.eps = eps
        self.checked: tuple[int, ...] = ()

    def prepare(
        self, features: Tensor, rows: Rows, *, overwrite: bool = False, moments_too: bool = False
    ) -> Call | None:
        """Prepare a call with features that :func:`takes`; None if their layout, or a row, is unfit."""
        layout = _layout(features)
        if layout is None:
            return None
        mean, variance, weight, bias = rows
        key = (layout[1], _pointer(mean), _pointer(variance), _pointer(weight), _pointer(bias))
        for row in rows:
            if row is not None and row.dtype is not torch.float32:
                return None
        if key != self.checked:
            if mean is None or variance is None or not all(_is_row(row, layout[1]) for row in rows):
                return None
            self.checked = key
        result = features if overwrite else torch.empty_like(features)
        moments = torch.empty((2, *layout[:2])) if moments_too else None
        pointers = (features.data_ptr(), result.data_ptr(), *layout, *key[1:], _pointer(moments))
        return Call(result, moments, (*pointers, torch.get_num_threads(), self.eps), rows)


def find(call: Call, alpha: float, norm_floor: float) -> Tensor | None:
    """Normalise as a layer of FIND does; return labels, ``(B,)``, or None if that is not possible."""
    labels = torch.empty(len(call.result), dtype=torch.int64)
    done = _library.find(ARGUMENTS["find"].pack(*call.arguments, labels.data_ptr(), alpha, norm_floor))
    return labels if done else None


def find_soft(
    call: Call,
    options: tuple[float, ...],
    depth: int,
    layers: int,
    log_threshold: float,
    total: Tensor,
    share_sum: Tensor,
    shares: int,
) -> Tensor | None:
    """Normalise as a layer of find-soft does.

    Args:
        call: The call.
        options: What ``SoftOptions`` of native.c lists.
        depth: 0, 1 in the middle of the model, or 2 in its late layers.
        layers: The number of layers so far, this one included.
        log_threshold: Logarithm of the drift at which the gate is half open.
        total: Drift summed over the layers before, ``(B,)``, which this one's is added to.
        share_sum: Common shares of the middle, summed, scalar, which this one's is added to at depth 1.
        shares: How many they are.

    Returns:
        Drift of the samples, ``(B,)``, or None if that is not possible.
    """
    samples = len(call.result)
    if not (_is_row(total, samples) and share_sum.is_cpu and share_sum.dtype is torch.float32):
        return None
    drift = torch.empty(samples)
    tensors = (drift.data_ptr(), total.data_ptr(), share_sum.data_ptr())
    packed = ARGUMENTS["find_soft"].pack(*call.arguments, *tensors, depth, layers, shares, log_threshold, *options)
    return drift if _library.find_soft(packed) else None


def find_domains(
    call: Call, tables: Sequence[int], kept: Tensor, sums: Tensor, options: tuple[float, ...]
) -> tuple[Tensor, Tensor] | None:
    """Normalise as a layer of find-domains does.

    Args:
        call: The call.
        tables: :func:`pointers` of what belongs to the batch, as ``FindDomains`` of native.c lists it.
        kept: Share of its memory that each domain keeps, ``(K,)``.
        sums: What the layer remembers of domains, ``(K, 2 C + 1)``.
        options: The number of layers so far, this one included, and the numbers at the end of ``FindDomains``.

    Returns:
        The sums with the samples, and drift of the samples, ``(B,)``; None if that is not possible.
    """
    if not (takes(sums) and sums.is_contiguous()):
        return None
    new_sums, drift = torch.empty_like(sums), torch.empty(len(call.result))
    own = (kept.data_ptr(), sums.data_ptr(), new_sums.data_ptr(), drift.data_ptr(), sums.shape[0])
    packed = ARGUMENTS["find_domains"].pack(*call.arguments, *tables, *own, *options)
    return (new_sums, drift) if _library.find_domains(packed) else None


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
    for name in ARGUMENTS:
        getattr(library, name).argtypes = (ctypes.c_char_p,)
    library.use_threads.argtypes = (ctypes.c_void_p,) * 3
    try:
        # Looked up through torch, so that both share one pool of threads.
        torch_library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        library.use_threads(*(ctypes.cast(getattr(torch_library, name), ctypes.c_void_p) for name in names))
    except (OSError, AttributeError, StopIteration):
        pass  # torch does not use OpenMP here: one thread
    return library


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed: {(error.stderr.strip().splitlines() or [''])[0]}"
    return (str(error).splitlines() or [type(error).__name__])[0]
