"""What a load test is asked to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from findtta.errors import OptionError
from findtta.options import Options, option

#: Requests of a closed loop have no schedule to bound their time by.
_SATURATED_SECONDS = 600.0
#: What the last answers get on top of their timeouts, for waits between tries.
_DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class LoadOptions(Options):
    """How much is sent, how fast, what, and how patiently."""

    url: str = option("http://127.0.0.1:8000", "where the server is")
    requests: int = option(1000, "how many requests are sent in all")
    rate: float | None = option(None, "requests per second that arrive, whatever comes back; None saturates")
    concurrency: int = option(64, "most connections at once; without a rate, the clients that wait for answers")
    bad: float = option(0.0, "share of requests that carry a poisoned input")
    seed: int = option(0, "of arrival times, images and the mixture")
    images: str = option("shapes", "'shapes', which are drawn, or a folder of images")
    per_request: int = option(1, "images per request; several go as multipart and JSON in turn")
    retries: int = option(2, "tries after the first, for broken connections and 5xx")
    timeout: float = option(90.0, "seconds one try may take; more than the server allows itself")
    limit: float | None = option(None, "seconds the whole test may take; None computes it from the others")
    oversize_mb: float = option(40.0, "megabytes of the poisoned input that is too large for the server")
    api_key: str | None = option(None, "sent as Authorization: Bearer")

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise OptionError(
                f"url must begin with http:// or https://, got {self.url!r}. "
                "Give for example http://127.0.0.1:8000."
            )
        for name in ("requests", "concurrency", "per_request"):
            self.require_positive_int(name)
        self.require_fraction("bad")
        self.require_seed("seed")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise OptionError(f"retries must be a whole number of at least 0, got {self.retries!r}.")
        self._require_positive("timeout")
        self._require_positive("oversize_mb")
        for name in ("rate", "limit"):
            if getattr(self, name) is not None:
                self._require_positive(name)

    @property
    def saturated(self) -> bool:
        """Whether clients wait for their answers instead of sending at a rate."""
        return self.rate is None

    @property
    def seconds(self) -> float:
        """The time after which the test ends, whatever is still open."""
        if self.limit is not None:
            return self.limit
        if self.rate is None:
            return _SATURATED_SECONDS
        # Poisson arrivals of n requests end within 1.5 n / rate unless n is tiny, and then the drain covers it.
        return 1.5 * self.requests / self.rate + (self.retries + 1) * self.timeout + _DRAIN_SECONDS

    def to_dict(self) -> dict[str, Any]:
        """Return the options for a report: all but the key."""
        return {name: value for name, value in vars(self).items() if name != "api_key"}

    def _require_positive(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise OptionError(f"{name} must be a number above 0, got {value!r}.")
