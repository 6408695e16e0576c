"""Ways to split a batch into groups: the paper's, its alternatives, and controls for its claims.

Each takes the instance means of one layer, ``(B, C)``, and returns one label per sample. FIND and
FIND* take any of them by name: ``findtta.adapt(model, "find", partitioner="kmeans")``.
"""

from findtta.partitioners.base import Partitioner, make_partitioner, partitioner_names, partitioners

__all__ = ["Partitioner", "make_partitioner", "partitioner_names", "partitioners"]
