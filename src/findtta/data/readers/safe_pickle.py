"""Reading the pickles CIFAR is published in, without running what a pickle may ask to run.

A pickle is a program. Here it can make lists, tables, numbers, text and bytes; everything else it may name
is an object of this module that only takes notes, and numpy sees the bytes after they were checked. Nothing
it names is imported.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from findtta.errors import InputError

_NUMBER_TYPE = re.compile(r"[|<>=]?[biuf][1248]")
_MEMO_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


def load_pickle(content: bytes, where: str) -> Any:
    """Return what a pickle of plain values and numeric arrays holds.

    Args:
        content: The pickle.
        where: How messages call it.

    Returns:
        Its value; text that Python 2 wrote is bytes.
    """
    try:
        _check_memo(content)
        return _arrays(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except (MemoryError, RecursionError) as error:
        raise InputError(f"{where} asks for more memory than it can need; it was not read.") from error
    except Exception as error:
        raise InputError(
            f"{where} must be a pickle of plain values and numeric arrays, as CIFAR is published, but: {error}. "
            "Nothing in it was run. Get the file again from where it is published."
        ) from error


def _check_memo(content: bytes) -> None:
    """Refuse slots beyond what the file could have filled: each would be allocated before it is used."""
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name in _MEMO_OPCODES and isinstance(argument, int) and argument > (position or 0) + 1:
            raise pickle.UnpicklingError(f"it uses slot {argument} at byte {position}")


class _Named:
    """What a pickle gets for a name: something to call that keeps no state a pickle could change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to change what its names mean")


class _Type:
    """Notes about the type of an array's elements."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_flags: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(self.code, str) or not _NUMBER_TYPE.fullmatch(self.code):
            raise pickle.UnpicklingError("it holds an array that is not numeric")
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        self.order = order.decode("latin1") if isinstance(order, bytes) else order

    def dtype(self) -> np.dtype[Any]:
        """Return the type."""
        dtype = np.dtype(self.code)
        return dtype.newbyteorder(">" if self.order == ">" else "<") if self.order in ("<", ">") else dtype


class _Array:
    """Notes about an array."""

    __slots__ = ("content", "dtype", "fortran", "shape")

    def __init__(self, *_arguments: Any) -> None:
        self.content: Any = None

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.fortran, self.content = state

    def array(self) -> np.ndarray[Any, Any]:
        """Make the array, if the notes agree with each other."""
        content = self.content.encode("latin1") if isinstance(self.content, str) else self.content
        if not isinstance(content, (bytes, bytearray)) or not isinstance(self.dtype, _Type):
            raise pickle.UnpicklingError("it holds an array without its content")
        dtype, shape = self.dtype.dtype(), tuple(int(length) for length in self.shape)
        if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"it holds {len(content)} bytes for an array of shape {shape}")
        flat = np.frombuffer(content, dtype)
        return flat.reshape(shape, order="F" if self.fortran else "C")


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    made = _Array()
    made.__setstate__((1, shape, dtype, order == "F", content))
    return made


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it encodes something other than bytes kept as latin1 text")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


#: The names a pickle of numeric arrays needs, from Python 2 and 3 and numpy 1 and 2.
_NAMES = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Named(_Array) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Named(_from_buffer) for core in ("core", "_core")},
    ("numpy", "ndarray"): _Named(_Array),
    ("numpy", "dtype"): _Named(_Type),
    ("_codecs", "encode"): _Named(_encode),
    ("builtins", "bytes"): _Named(_no_bytes),
    ("__builtin__", "bytes"): _Named(_no_bytes),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _NAMES[module, name]

    def persistent_load(self, _identity: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def _arrays(value: Any) -> Any:
    """Replace notes by arrays, also in a table; deeper ones are none of CIFAR's and stay notes."""
    if isinstance(value, dict):
        return {key: item.array() if isinstance(item, _Array) else item for key, item in value.items()}
    return value.array() if isinstance(value, _Array) else value
