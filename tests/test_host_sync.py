"""Methods without gradients never wait for the device: their forward could be captured as a CUDA graph."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import findtta
from findtta.functional import native
from nets import METHODS, images, tiny

NO_GRADIENTS = (*METHODS, "find-domains", "unmix-tns", "tbr", "lame", "t3a", "find+lame", "find-soft+t3a")
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
    adapted = settled(method)
    with NoWaiting():
        adapted(images(seed=20))


def settled(method):
    """An adapted model after its first batches: the very first one is checked, and FIND* has a cold start."""
    adapted = findtta.adapt(tiny(), method)
    for seed in range(12):
        adapted(images(seed=seed))
    return adapted


@pytest.mark.parametrize("method", NO_GRADIENTS)
def test_tensors_without_values_pass(method):
    # They have shapes only: reading a value, or a size that depends on values, raises.
    outputs = settled(method).to("meta")(torch.empty(6, 3, 8, 8, device="meta"))
    assert (outputs.device.type, outputs.shape) == ("meta", (6, 4))


@pytest.mark.parametrize("method", NO_GRADIENTS)
def test_memory_does_not_depend_on_values(method):
    adapted = settled(method)
    found = []
    for batch in (images(8, seed=30), torch.zeros(8, 3, 8, 8), images(8, seed=31) * 1e3):
        with Sizes() as sizes, native.disabled():
            adapted(batch)
        found.append(sizes.seen)
    assert found[0] == found[1] == found[2]
    assert found[0]


class Sizes(TorchDispatchMode):
    """Writes down the operations of a forward pass, with the shapes of their results."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.seen.append((func.name(), [tuple(tensor.shape) for tensor in tensors]))
        return result


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
