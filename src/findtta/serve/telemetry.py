"""Metrics of a running server, in Prometheus' format."""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import findtta
from findtta.predictor import Predictions

#: The buckets that OpenTelemetry advises for the duration of HTTP requests.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: The weight of the newest batch in a moving mean: about the last twenty batches count.
_NEWEST = 0.05


class Kinds(NamedTuple):
    """What makes metrics by name, description and labels, as prometheus_client does."""

    counter: Callable[..., Any]
    gauge: Callable[..., Any]
    histogram: Callable[..., Any]


class Telemetry:
    """Metrics of one server, of the layers whose groups and drift are recorded, and of classes by their labels.

    Nothing is shared with others in the same process. What each metric is, its description says. ``build`` is what
    runs, by name; each request becomes a line of JSON in ``access_log``, if there is one. ``kinds`` are metrics of
    another kind, which are not in the text.
    """

    def __init__(
        self,
        layers: Sequence[str],
        labels: Sequence[str],
        build: Mapping[str, str] | None = None,
        access_log: TextIO | None = None,
        kinds: Kinds | None = None,
    ) -> None:
        self._access_log = access_log
        self._registry = registry = CollectorRegistry()
        self._layers = tuple(layers)
        self._labels = tuple(labels)
        own = Kinds(*(partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)))
        counter, gauge, histogram = kinds or own
        sizes = partial(histogram, buckets=_SIZES)
        self._build = {"version": findtta.__version__} | dict(build or {})
        self._build_info = gauge("findtta_build_info", "What runs; always 1.", tuple(self._build))
        self._build_info.labels(**self._build).set(1)
        self._requests = counter("findtta_requests", "Requests by route and status.", ("route", "status"))
        about = "Time from the header of a request to the end of its response."
        self._seconds = histogram("findtta_request_seconds", about, ("route",), buckets=_SECONDS)
        self._batch_size = sizes("findtta_batch_size", "Images per batch.")
        self._batch_groups = sizes("findtta_batch_groups", "Groups per batch, mean over the layers.")
        self._classes = counter("findtta_predictions", "Predictions by class.", ("label",))
        self._layer_groups = gauge("findtta_layer_groups", "Groups per batch, moving mean.", ("layer",))
        about = "KL divergence of samples from the training data, moving mean over batches."
        self._layer_drift = gauge("findtta_layer_drift", about, ("layer",))
        self._queue = gauge("findtta_queue_images", "Images that wait or are being predicted.")
        self.retries = counter("findtta_batch_retries", "Batches sent again after a replica died.")
        about = "Replicas that have predicted so far; the replacement of a dead one counts anew."
        self._replicas = counter("findtta_replicas_seen", about)
        self._switches = counter("findtta_method_switches", "How often the served method was switched.")
        about = "Batches that were the turn of the shadow method: compared, skipped or failed."
        self._shadow_batches = counter("findtta_shadow_batches", about, ("result",))
        self._shadow_images = counter("findtta_shadow_images", "Images that were compared.")
        about = "Compared images whose class differs between the served and the shadow method."
        self._shadow_disagreements = counter("findtta_shadow_disagreements", about)
        about = "Mean confidence of the served method minus that of the shadow, moving mean over batches."
        self._shadow_gap = gauge("findtta_shadow_confidence_gap", about)
        about = "Points of accuracy that the served method is estimated above the shadow, over the last batches."
        self.shadow_gain = gauge("findtta_shadow_estimated_gain", about)
        self.drift = gauge("findtta_drift", "Drift of the images, mean over layers; moving mean over images.")
        self.drift_level = gauge("findtta_drift_level", "Drift beyond what clean images have; NaN if unknown.")
        self.drift_alert = gauge("findtta_drift_alert", "Whether the drift is above its level (1) or not (0).")
        if kinds is None:  # elsewhere there is neither shadow nor alert
            for unknown in (self._shadow_gap, self.shadow_gain, self.drift, self.drift_level):
                unknown.set(math.nan)
            for result in ("compared", "skipped", "failed"):
                self._shadow_batches.labels(result)
        self._gauge = gauge
        self._domains: tuple[Any, Any, Any] | None = None  # made when there are any
        self._places: set[str] = set()  # all that were ever shown
        self._seen: set[str] = set()
        self._means: dict[tuple[Gauge, str], float] = {}

    def switch(self, method: str, layers: Sequence[str]) -> None:
        """Begin anew with what depends on the method."""
        self._switches.inc()
        self._layers = tuple(layers)
        if "method" in self._build:
            self._build["method"] = method
        self._build_info.clear()
        self._build_info.labels(**self._build).set(1)
        for gauge in (self._layer_groups, self._layer_drift):
            gauge.clear()
        self._means.clear()
        if self._domains is not None:
            self._show_domains(())
        for unknown in (self._shadow_gap, self.shadow_gain, self.drift):
            unknown.set(math.nan)

    def count_request(
        self, route: str, status: int, seconds: float, method: str, request_id: str, batch_id: str | None
    ) -> None:
        """Count a request that is over, and log it; its status is 0 if the client left before the response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if self._access_log is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
            "batch_id": batch_id,
        }
        with contextlib.suppress(OSError):  # a full disk must not stop the server
            self._access_log.write(json.dumps(line) + "\n")

    def count_replica(self, replica: str) -> None:
        """Count a replica the first time that it predicts."""
        if replica not in self._seen:
            self._seen.add(replica)
            self._replicas.inc()

    def count_batch(self, predictions: Predictions, *, is_current: bool = True) -> None:
        """Count one batch; call it once for each. Its layers count if it is of the method that is current."""
        self._batch_size.observe(len(predictions.probabilities))
        for index, count in zip(*np.unique(predictions.indices, return_counts=True), strict=True):
            self._classes.labels(self._labels[index]).inc(int(count))
        if not is_current:
            return
        if predictions.domains:
            self._show_domains(predictions.domains)
        groups = _groups_per_layer(predictions.groups)
        for name, number in zip(self._layers, groups, strict=True):
            self._move(self._layer_groups, name, float(number))
        for name, drift in zip(self._layers, predictions.drift.mean(0), strict=True):
            self._move(self._layer_drift, name, drift)
        if not np.isnan(groups).all():
            self._batch_groups.observe(float(np.nanmean(groups)))

    def _show_domains(self, domains: Sequence[Mapping[str, float]]) -> None:
        if self._domains is None:
            about = "Domains that the replica remembers."
            share = "Share of a domain in the latest images, by its place in the memory; NaN if it is free."
            drift = "Drift of a domain as a multiple of the threshold, by its place in the memory."
            self._domains = (
                self._gauge("findtta_domains", about),
                self._gauge("findtta_domain_share", share, ("domain",)),
                self._gauge("findtta_domain_drift", drift, ("domain",)),
            )
        number, share_of, drift_of = self._domains
        number.set(len(domains))
        by_place = {str(domain["place"]): domain for domain in domains}
        self._places |= by_place.keys()
        for place in self._places:
            known = by_place.get(place, {})
            share_of.labels(place).set(known.get("share", math.nan))
            drift_of.labels(place).set(known.get("drift", math.nan))

    def count_shadow(self, served: Predictions, shadow: Predictions) -> None:
        """Count a batch that two methods predicted."""
        self._shadow_batches.labels("compared").inc()
        self._shadow_images.inc(len(served.indices))
        self._shadow_disagreements.inc(int((served.indices != shadow.indices).sum()))
        served_confidence, confidence = (each.probabilities.max(1).mean() for each in (served, shadow))
        self._move(self._shadow_gap, "", float(served_confidence - confidence))

    def skip_shadow(self, result: str = "skipped") -> None:
        """Count a batch that was the turn of the shadow method, but was not compared."""
        self._shadow_batches.labels(result).inc()

    def _move(self, gauge: Gauge, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        before = self._means.get((gauge, name), value)
        mean = self._means[gauge, name] = before + _NEWEST * (value - before)
        (gauge.labels(name) if name else gauge).set(mean)

    def text(self, queue: int) -> bytes:
        """Return everything in Prometheus' text format, with the present length of the queue."""
        self._queue.set(queue)
        return generate_latest(self._registry) or b"# Ray publishes the metrics: see docs/serving.md\n"


def _groups_per_layer(groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number of groups in each layer; NaN where a layer makes none."""
    distinct = 1.0 + (np.diff(np.sort(groups, axis=0), axis=0) != 0).sum(0)
    return np.where((groups < 0).any(0), math.nan, distinct)
