"""Whether operations are computed now, or become a graph."""

import torch
from torch import Tensor


def traced() -> bool:
    """Tell whether the operations that this thread runs become a graph.

    ``torch.compiler.is_compiling()`` does not: it is also true for all other threads while one of them compiles.
    """
    if torch.compiler.is_dynamo_compiling():  # only ever true in code that the compiler reads
        return True
    return exported()


def exported() -> bool:
    """Tell whether the operations that this thread runs become a graph for an exported file."""
    # The flag is the whole process's; what records the operations is a mode of the exporting thread.
    return torch.compiler.is_exporting() and (
        torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack() > 0
    )


def single(samples: Tensor) -> bool:
    """Tell whether this is a batch of one that becomes a graph; such a graph serves no other batch size."""
    return torch.compiler.is_dynamo_compiling() and not exported() and samples.shape[0] == 1
