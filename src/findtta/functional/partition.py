"""Layer-wise feature disentanglement (LFD): split a batch into groups of like features.

Each sample points at its first neighbour, the sample of highest cosine similarity; samples joined
by such pointers form a group (equations 2 and 3; the rule ``a_i = a_j`` of equation 3 adds no edge
that the pointers do not already imply).
"""

import torch
from torch import Tensor

from findtta.functional import native
from findtta.functional.graph_mode import exported, single, traced
from findtta.functional.moments import replace_nan, widen

NORM_FLOOR = 1e-12  # a zero vector gets similarity 0 to everything
# Sums of two cosines lie in [-2, 2]. A sample prefers any other sample to itself, and itself to a
# poisoned one, so a sample without a usable neighbour forms a group of its own.
SELF, POISONED = -4.0, -5.0
ROWS_AT_ONCE = 4096  # bounds the similarity table of very large batches
TRACED_BATCH = 1 << 24  # the largest batch of a traced graph, whose batch size is symbolic


def partition(features: Tensor, *, traced_batch: int = TRACED_BATCH) -> Tensor:
    """Label the samples that share a first-neighbour component (LFD).

    Args:
        features: Feature map, ``(B, C, *spatial)``, or instance means, ``(B, C)``.
        traced_batch: The largest batch that a traced graph has to serve; otherwise of no effect.

    Returns:
        Labels, int64 ``(B,)``: the index of one sample of the group, the same for all its members.

    Example:
        >>> import torch
        >>> partition(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 3.0]]))
        tensor([0, 1, 0, 1])
    """
    if not traced() and features.shape[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=features.device)
    descriptors = features.flatten(2).mean(2) if features.ndim > 2 else features
    if single(descriptors):
        return torch.zeros(1, dtype=torch.int64, device=features.device)
    if traced() and not exported():
        return torch.ops.findtta.partition(descriptors)
    if (labels := native.partition(descriptors, NORM_FLOOR)) is not None:
        return labels
    return components(first_neighbours(descriptors), traced_batch=traced_batch)


def first_neighbours(descriptors: Tensor) -> Tensor:
    """Index of the most similar other sample by cosine; the lowest index on ties.

    Args:
        descriptors: One vector per sample, ``(B, C)``.

    Returns:
        Neighbour index, int64 ``(B,)``. A sample with a NaN or Inf is nobody's neighbour and, like
        a sample that is alone, points at itself.
    """
    descriptors = widen(descriptors)
    norm = torch.linalg.vector_norm(descriptors, dim=1, keepdim=True)
    unit = descriptors / norm.clamp_min(NORM_FLOOR)
    if traced() or unit.shape[0] <= ROWS_AT_ONCE:
        similarity = unit @ unit.T
        # The product of a matrix with its transpose need not be symmetric to the last bit. Made so,
        # the walk along neighbours can only end in a pair that point at each other (ties included).
        similarity = similarity + similarity.T
        similarity = _with_diagonal(replace_nan(similarity, POISONED), SELF)
        return similarity.argmax(1)
    neighbours = []
    index = torch.arange(len(unit), device=unit.device)
    for rows in index.split(ROWS_AT_ONCE):
        similarity = unit[rows] @ unit.T + (unit @ unit[rows].T).T
        similarity = similarity.nan_to_num(nan=POISONED)
        similarity[rows - rows[0], rows] = SELF
        neighbours.append(similarity.argmax(1))
    return torch.cat(neighbours)


def _with_diagonal(table: Tensor, value: float) -> Tensor:
    if not traced():
        table.fill_diagonal_(value)
        return table
    # The quicker form above would fix the size of the batch in a traced graph.
    index = torch.arange(table.shape[0], device=table.device)
    return table.masked_fill(index[:, None] == index, value)


def components(neighbours: Tensor, *, traced_batch: int = TRACED_BATCH) -> Tensor:
    """Connected components of the graph with an edge from each node to its neighbour.

    Args:
        neighbours: One neighbour index per node, int64 ``(B,)``, in which every walk ends in a node
            that points at itself or in two that point at each other (as first neighbours do).
        traced_batch: The largest batch that a traced graph has to serve; otherwise of no effect.

    Returns:
        Labels, int64 ``(B,)``: the lower index of the two nodes at the end of the walk.
    """
    if exported():
        return _ends_of_walks(neighbours, traced_batch)
    if traced():
        return torch.ops.findtta.components(neighbours)
    return _ends_of_walks(neighbours, neighbours.shape[0])


def _ends_of_walks(neighbours: Tensor, batch: int) -> Tensor:
    # Pointer jumping: each round doubles the steps taken, so log2(B) rounds end every walk.
    end = neighbours
    for _ in range(max(0, batch - 1).bit_length()):
        end = end.gather(0, end)
    return torch.minimum(end, neighbours.gather(0, end))


# Operators that the compiler calls and does not look into: it would merge the chain of gathers into one expression
# of exponential size, and translate every small step to C++. The number of rounds may so follow the batch, too.
_OPERATORS = torch.library.Library("findtta", "FRAGMENT")  # a custom_op costs several times as much per call
for _function in (partition, components):
    _OPERATORS.define(f"{_function.__name__}(Tensor samples) -> Tensor")
    _OPERATORS.impl(_function.__name__, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"findtta::{_function.__name__}",
        lambda samples: samples.new_empty(samples.shape[0], dtype=torch.int64),
        lib=_OPERATORS,
    )


def count_groups(labels: Tensor) -> Tensor:
    """Number of groups in the labels of :func:`partition`, as a scalar tensor."""
    return (labels == torch.arange(len(labels), device=labels.device)).sum()
