"""The prediction server: requests of many clients become mixed batches, answered by a method on Ray Serve."""

from findtta.serve.settings import Settings

__all__ = ["Settings"]
