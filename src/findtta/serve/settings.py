"""What a prediction server is told: the model, the method, how batches are made, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from findtta.errors import OptionError
from findtta.images import ImageLimits
from findtta.predictor import PredictorSettings
from findtta.registry import build_options, load_method

MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings(PredictorSettings):
    """All settings of a server.

    Attributes:
        host: The address to listen at.
        port: The port to listen at; 0 takes a free one.
        max_batch: The most images in one batch.
        wait_ms: How long an image waits for others to share its batch with.
        replicas: How many copies of the model run, at least.
        max_replicas: How many run at most, as the load asks for; by default always ``replicas``.
        threads: CPU threads of each copy.
        max_body_bytes: The largest body of a request.
        max_json_bytes: The largest body that is JSON, which costs more to read.
        max_pending_bytes: The most bytes of bodies that are read at one time.
        limits: The largest image.
        max_images: The most images in one request; by default ``max_batch``, which it may not exceed, because
            the images of a request share one batch.
        max_queue: The most images that wait or are being classified; more are refused until there is room.
        timeout_s: How long a request may take.
        drain_s: How long a server that was told to stop goes on answering that it stops, at least.
        api_key: What requests must bring, or None for everybody.
        ray_address: A Ray cluster to run the model on; by default a Ray of its own on this machine.
    """

    model: str = "shapes-resnet26"  # by name only: replicas load it themselves
    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 64
    wait_ms: float = 10.0
    replicas: int = 1
    max_replicas: int | None = None
    threads: int = 1
    max_body_bytes: int = 32 * MEBIBYTE
    max_json_bytes: int = 16 * MEBIBYTE
    max_pending_bytes: int = 512 * MEBIBYTE
    limits: ImageLimits = field(default_factory=ImageLimits)
    max_images: int | None = None
    max_queue: int = 1024
    timeout_s: float = 60.0
    drain_s: float = 0.0
    api_key: str | None = field(default=None, repr=False)
    ray_address: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch", "replicas", "threads", "max_body_bytes", "max_json_bytes", "max_queue"):
            self._require_positive_int(name)
        for name in ("num_classes", "image_size", "max_images", "max_replicas"):
            if getattr(self, name) is not None:
                self._require_positive_int(name)
        self._require_number("wait_ms", 0)
        self._require_number("drain_s", 0)
        self._require_number("timeout_s", 0.001)
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 <= self.port <= 65535:
            raise OptionError(f"port must be a whole number from 0 to 65535, got {self.port!r}.")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.strip()):
            raise OptionError("api_key must be ASCII and not blank; leave it out to let everybody in.")
        self._require_order("replicas", "max_replicas", "at least as many may run as must")
        self._require_order("max_images", "max_batch", "the images of a request share one batch")
        self._require_order("max_batch", "max_queue", "or no batch would ever be full")
        self._require_order("max_body_bytes", "max_pending_bytes", "or no large request would ever be read")
        self._require_servable()

    def _require_positive_int(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}.")

    def _require_number(self, name: str, least: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise OptionError(f"{name} must be a number of at least {least:g}, got {value!r}.")

    def _require_order(self, low: str, high: str, reason: str) -> None:
        smaller, larger = getattr(self, low), getattr(self, high)
        if smaller is not None and larger is not None and smaller > larger:
            raise OptionError(f"{low} must be at most {high} ({larger}), got {smaller}: {reason}.")

    def _require_servable(self) -> None:
        method = load_method(self.method)
        build_options(method, self.options)  # names what is wrong with them
        if method.needs_grad:
            raise OptionError(
                f"method {self.method!r} learns from every batch, so that one client's images would change the "
                "answers to all others for good: serve a method that does not, such as 'find'."
            )
        if method.stateful and self.most_replicas > 1:
            raise OptionError(
                f"replicas must be 1 for {self.method!r}, got {self.most_replicas}: each copy would settle on "
                "its own first batches, and answers would depend on which copy gave them."
            )

    @property
    def most_replicas(self) -> int:
        """How many copies of the model run at most."""
        return self.max_replicas or self.replicas

    @property
    def most_images(self) -> int:
        """How many images a request may have at most."""
        return self.max_images or self.max_batch

    def public(self) -> dict[str, Any]:
        """Return what a client may know of the limits."""
        return {
            "max_batch": self.max_batch,
            "wait_ms": self.wait_ms,
            "max_body_bytes": self.max_body_bytes,
            "max_json_bytes": self.max_json_bytes,
            "max_images": self.most_images,
            "max_queue": self.max_queue,
            "timeout_s": self.timeout_s,
            **{f"image_{name}": value for name, value in dataclasses.asdict(self.limits).items()},
        }
