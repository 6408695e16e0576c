"""Calls of a model as compiled code: one graph for all batch sizes, and one for batches of one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from findtta.errors import FindTTAError, first_line

#: The largest batch of a compiled graph; its table of similarities, batch by batch, would take 16 GiB.
MAX_BATCH = 1 << 16
#: Held while a graph is made: torch keeps what it knows about that for the whole process.
MAKING_GRAPH = threading.RLock()


class CompileError(FindTTAError, RuntimeError):
    """A model, a method or this machine does not allow compiling."""


class Compiled:
    """Compiles a function of one batch when it is first called with a new kind of batch.

    A kind is all but the size of the batch (shape of a sample, dtype, device, memory format), and whether it is a
    batch of one, for which torch makes a graph of its own. A copy of this object starts without compiled code. It
    may be called from several threads: while one makes a graph, others wait only if they need a new one, too.

    Attributes:
        graphs: How many graphs have been compiled.
        seconds: How long compiling them has taken, with the first call of each.
    """

    #: What makes code of a graph; the name of a torch.compile backend.
    backend: ClassVar[str] = "inductor"

    def __init__(self) -> None:
        self.graphs = 0
        self.seconds = 0.0
        self._calls: dict[tuple[object, ...], Callable[[Tensor], Any]] = {}

    def __deepcopy__(self, memo: object) -> "Compiled":
        return type(self)()

    def __reduce__(self) -> tuple[type["Compiled"], tuple[()]]:
        return type(self), ()

    def __call__(
        self, function: Callable[[Tensor], Any], batch: Tensor, before: Callable[[Tensor], object]
    ) -> Any:
        """Call the function, the same in every call, as compiled code.

        ``before`` is called with the batch before code for a new kind of batch is made: it raises what is wrong
        with the batch, or finds out what a graph has to know.
        """
        batch = _canonical(batch)
        kind = _kind(batch)
        if kind in self._calls:
            return self._run(self._calls[kind], batch)
        with MAKING_GRAPH:
            if kind in self._calls:
                return self._run(self._calls[kind], batch)
            before(batch)
            start = time.perf_counter()
            call = self._compile(function)
            try:
                with _one_convolution_for_all_batches():
                    result = self._run(call, batch)
            except FindTTAError:
                raise
            except Exception as error:  # whatever torch raises, there is no code
                raise CompileError(_explanation(error, batch.device)) from error
            self.seconds += time.perf_counter() - start
            self._calls[kind] = call
            return result

    def _run(self, call: Callable[[Tensor], Any], batch: Tensor) -> Any:
        # Grad and inference mode are properties of a graph: the same ones in every call.
        with torch.inference_mode(False), torch.no_grad():
            if batch.shape[0] > 1:
                torch._dynamo.decorators.mark_dynamic(batch, 0)
            return call(batch)

    def _compile(self, function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def body(batch: Tensor) -> Any:
            torch._check(batch.shape[0] <= MAX_BATCH)
            return function(batch)

        # torch keeps graphs by code object, up to a limit: each kind of batch of each model gets one of its own.
        body.__code__ = body.__code__.replace()
        backend = torch._dynamo.lookup_backend(self.backend)

        def counting(graph: torch.fx.GraphModule, inputs: list[Tensor], **more: Any) -> Any:
            self.graphs += 1
            return backend(graph, inputs, **more)

        compiled: Callable[[Tensor], Any] = torch.compile(
            body, fullgraph=True, dynamic=False, backend=counting, options={"guard_filter_fn": _keep_guards}
        )
        return compiled


def _keep_guards(entries: Sequence[Any]) -> list[bool]:
    # Sizes, dtypes and devices of all tensors are checked in every call. Checking every attribute of every module,
    # too, would take as long as all layers of FIND on a batch of one.
    return [entry.guard_type in ("TENSOR_MATCH", "SHAPE_ENV") for entry in entries]


def require_compiler(device: torch.device) -> None:
    """Raise ``CompileError`` unless what compiles for a device is installed."""
    problem = None
    if device.type == "cpu":
        from torch._inductor import cpp_builder

        try:
            cpp_builder.get_cpp_compiler()
        except Exception as error:  # torch has an error of its own for each system
            problem = f"torch.compile needs a C++ compiler for the CPU, and found none ({first_line(error)})"
    elif device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            problem = "torch.compile needs Triton for a GPU, and found none that works"
    if problem:
        raise CompileError(f"compile must be False on this machine: {problem}. Install one, or do not compile.")


def _canonical(batch: Tensor) -> Tensor:
    """Return a batch without what would make another graph of the same numbers: history, gaps, inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        batch = batch.clone() if batch.is_inference() else batch.detach()
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if batch.ndim in formats and batch.is_contiguous(memory_format=formats[batch.ndim]):
            return batch
        return batch.contiguous()


def _kind(batch: Tensor) -> tuple[object, ...]:
    cast = torch.is_autocast_enabled(batch.device.type) and torch.get_autocast_dtype(batch.device.type)
    return batch.shape[0] == 1, batch.shape[1:], batch.stride()[1:], batch.dtype, batch.device, cast


@contextmanager
def _one_convolution_for_all_batches() -> Iterator[None]:
    """Keep the tracer from making another graph for batches below 16.

    It asks which convolution of the CPU would run, to know the memory format of the result. The answer can depend
    on whether the batch is below 16, the format cannot: so it is asked about the batch at hand, without a guard.
    """
    ask = torch._C._select_conv_backend

    def asked(features: Tensor, *rest: Any, **more: Any) -> Any:
        at_hand = torch.empty_strided(
            [_at_hand(size) for size in features.shape],
            [_at_hand(stride) for stride in features.stride()],
            dtype=features.dtype,
            device=features.device,
        )
        return ask(at_hand, *rest, **more)

    torch._C._select_conv_backend = asked
    try:
        yield
    finally:
        torch._C._select_conv_backend = ask


def _at_hand(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _explanation(error: Exception, device: torch.device) -> str:
    try:
        require_compiler(device)
    except CompileError as missing:
        return str(missing)
    reason = first_line(getattr(error, "inner_exception", error))  # what a backend raised is inside
    return (
        f"compile must be False for this model: torch.compile cannot make one graph of it ({reason}). "
        "The model may branch on values or on the size of its batch."
    )
