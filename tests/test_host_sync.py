"""Methods without gradients never wait for the device: their forward could be captured as a CUDA graph."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import findtta
from nets import METHODS, images, tiny

NO_GRADIENTS = (*METHODS, "unmix-tns", "tbr", "lame", "t3a", "find+lame", "find-soft+t3a")
#: What reads values on the host, or returns a tensor whose size depends on them.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::repeat_interleave",
}


class NoWaiting(TorchDispatchMode):
    """Raises where an operation would wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func.name().startswith("aten::index") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if by_mask or func._schema.name in WAITING:
            raise AssertionError(f"{func.name()} waits for the device")
        return func(*args, **(kwargs or {}))


def test_the_mode_sees_what_waits():
    for waits in (
        lambda x: x.sum().item(),
        lambda x: bool(x[0, 0] > 0),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x + 1),
    ):
        with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
            waits(torch.ones(2, 2))


@pytest.mark.parametrize("method", NO_GRADIENTS)
def test_the_forward_never_waits(method):
    adapted = findtta.adapt(tiny(), method)
    for seed in range(12):  # a first batch is checked; FIND* has a cold start
        adapted(images(seed=seed))
    with NoWaiting():
        adapted(images(seed=20))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_keeps_statistics_in_float32(method, dtype):
    adapted = findtta.adapt(tiny(), method)
    batch = images(16)
    seen = []
    for _, layer in adapted.layers():
        layer.observers.append(lambda mean, variance: seen.append((mean.dtype, variance.dtype)))
    want = adapted(batch)
    seen.clear()
    with torch.autocast("cpu", dtype):
        got = adapted(batch)
    assert set(seen) <= {(torch.float32, torch.float32)}
    assert method == "source" or len(seen) == 4
    assert got.isfinite().all()
    assert (got.float() - want).norm() < 1e-2 * want.norm()
