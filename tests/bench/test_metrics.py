"""The metrics against literal loops over samples."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from findtta.bench.evaluate import BINS, POINTS, GroupCounts, Metrics
from findtta.errors import InputError

DOMAINS, CLASSES = ("fog@5", "snow@5", "clean"), ("disc", "ring", "star", "cross")


def stream(samples: int = 300, seed: int = 0, classes: int = len(CLASSES)):
    """Logits, labels and domains; the last class and the last domain never appear."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(scale=3, size=(samples, classes)).astype(np.float32))
    return logits, rng.integers(0, len(CLASSES) - 1, samples), rng.integers(0, len(DOMAINS) - 1, samples)


def feed(logits, labels, domains, sizes, rounds=None) -> Metrics:
    metrics = Metrics(DOMAINS, CLASSES, len(sizes), 1 + max(rounds or [0]))
    start = 0
    for index, size in enumerate(sizes):
        part = slice(start, start + size)
        metrics.update(logits[part], labels[part], domains[part], rounds[index] if rounds else 0)
        start += size
    return metrics


def softmax(row) -> list[float]:
    highest = max(row)
    exponentials = [math.exp(value - highest) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def reference(logits, labels) -> dict[str, float]:
    right = nll = brier = 0.0
    bins = [[] for _ in range(15)]
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        probabilities = softmax(row)
        predicted = probabilities.index(max(probabilities))
        right += predicted == label
        nll -= math.log(probabilities[label])
        brier += sum((p - (index == label)) ** 2 for index, p in enumerate(probabilities))
        confidence = probabilities[predicted]
        for index in range(15):
            if index / 15 <= confidence < (index + 1) / 15 or (index == 14 and confidence == 1):
                bins[index].append((predicted == label, confidence))
    ece = 0.0
    for inside in filter(None, bins):
        accuracy = sum(hit for hit, _ in inside) / len(inside)
        confidence = sum(confidence for _, confidence in inside) / len(inside)
        ece += len(inside) / len(labels) * abs(accuracy - confidence)
    count = len(labels)
    return {
        "samples": count,
        "accuracy": 100 * right / count,
        "error": 100 - 100 * right / count,
        "nll": nll / count,
        "brier": brier / count,
        "ece": 100 * ece,
    }


def hits(logits, labels) -> list[bool]:
    return [
        max(range(len(row)), key=row.__getitem__) == label
        for row, label in zip(logits.tolist(), labels, strict=True)
    ]


def test_there_are_fifteen_bins():
    assert BINS == 15


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_a_literal_loop(seed):
    logits, labels, domains = stream(seed=seed)
    metrics = feed(logits, labels, domains, [64, 64, 64, 64, 44]).summary()["metrics"]
    for name, value in reference(logits, labels).items():
        assert metrics[name] == pytest.approx(value, rel=1e-9), name
    assert metrics["not_finite"] == 0


def test_domains_and_classes_are_counted_apart_and_absent_ones_left_out():
    logits, labels, domains = stream()
    summary = feed(logits, labels, domains, [100] * 3).summary()
    right = hits(logits, labels)
    for part, names, which in (("per_domain", DOMAINS, domains), ("per_class", CLASSES, labels)):
        expected = {}
        for index, name in enumerate(names):
            inside = [hit for hit, place in zip(right, which, strict=True) if place == index]
            if inside:
                expected[name] = {"samples": len(inside), "accuracy": 100 * sum(inside) / len(inside)}
        assert summary[part] == expected
        assert names[-1] not in summary[part]
    accuracies = [row["accuracy"] for row in summary["per_domain"].values()]
    assert summary["metrics"]["mean_domain_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_rounds_are_counted_apart():
    logits, labels, domains = stream()
    summary = feed(logits, labels, domains, [50, 100, 100, 50], rounds=[0, 0, 1, 2]).summary()
    right = hits(logits, labels)
    parts = (right[:150], right[150:250], right[250:])
    assert summary["per_round"] == [100 * sum(part) / len(part) for part in parts]


@pytest.mark.parametrize("batches", [1, 7, POINTS, POINTS + 1, 2 * POINTS - 1, 3 * POINTS + 50])
def test_the_curve_has_every_so_many_batches_and_ends_with_the_stream(batches):
    logits, labels, domains = stream(2 * batches)
    metrics = feed(logits, labels, domains, [2] * batches)
    running = metrics.summary()["running"]
    right, stride = hits(logits, labels), math.ceil(batches / POINTS)
    ends = [*range(stride, batches + 1, stride)]
    ends += [batches] * (ends[-1:] != [batches])
    assert running["batch"] == ends
    assert len(ends) <= POINTS
    assert running["accuracy"] == [100 * sum(right[: 2 * end]) / (2 * end) for end in ends]
    for start, end, window in zip([0, *ends], ends, running["window"], strict=False):
        assert window == 100 * sum(right[2 * start : 2 * end]) / (2 * (end - start))
    assert running["accuracy"][-1] == metrics.accuracy
    assert metrics.summary()["running"] == running  # asking does not change it


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    cut=st.integers(0, 100),
    seed=st.integers(0, 1000),
)
def test_other_batches_give_the_same_sums(sizes, cut, seed):
    total = sum(sizes)
    cut = min(cut, total)
    logits, labels, domains = stream(total, seed)
    one = feed(logits, labels, domains, sizes).summary()
    other = feed(logits, labels, domains, [cut, total - cut]).summary()  # one of them may be empty
    assert one["per_domain"] == other["per_domain"]
    assert one["per_class"] == other["per_class"]
    assert one["per_round"] == other["per_round"]
    for name, value in one["metrics"].items():
        assert other["metrics"][name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_prediction_that_is_not_finite_is_wrong_and_unsure_whatever_its_label(value):
    for label in range(len(CLASSES)):
        logits = torch.zeros(2, len(CLASSES))
        logits[:, label] = 5.0
        logits[1, (label + 1) % len(CLASSES)] = value
        metrics = Metrics(DOMAINS, CLASSES, 1, 1)
        metrics.update(logits, np.array([label, label]), np.array([0, 1]))
        summary = metrics.summary()
        assert summary["metrics"]["accuracy"] == 50
        assert summary["metrics"]["not_finite"] == 1
        assert summary["per_domain"]["snow@5"]["accuracy"] == 0
        sure = softmax(logits[0].tolist())[label]
        assert summary["metrics"]["nll"] == pytest.approx((math.log(4) - math.log(sure)) / 2)
        others = (1 - sure) / 3
        assert summary["metrics"]["brier"] == pytest.approx(((1 - sure) ** 2 + 3 * others**2 + 0.75) / 2)
        assert all(math.isfinite(value) for value in summary["metrics"].values())


def test_certainty_falls_into_the_last_bin():
    logits = torch.tensor([[1000.0, 0, 0, 0]] * 4)
    metrics = Metrics(DOMAINS, CLASSES, 1, 1)
    metrics.update(logits, np.array([0, 0, 0, 1]), np.zeros(4, np.int64))
    assert metrics.summary()["metrics"]["ece"] == pytest.approx(25)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_precision(dtype):
    logits, labels, domains = stream(64)
    metrics = feed(logits.to(dtype), labels, domains, [64]).summary()["metrics"]
    assert metrics["nll"] == pytest.approx(reference(logits.to(dtype).float(), labels)["nll"], rel=1e-6)


def test_a_model_may_know_more_classes_than_the_data_has():
    logits, labels, domains = stream(classes=9)
    metrics = feed(logits, labels, domains, [300]).summary()["metrics"]
    assert metrics["nll"] == pytest.approx(reference(logits, labels)["nll"])


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (5, 4, 1), (5,)])
def test_logits_that_do_not_fit_the_data_are_refused(shape):
    metrics = Metrics(DOMAINS, CLASSES, 1, 1)
    with pytest.raises(InputError, match=r"shape \(5, 4 or more\)"):
        metrics.update(torch.zeros(shape), np.zeros(5, np.int64), np.zeros(5, np.int64))
    assert metrics.samples == 0


def test_nothing_seen_is_no_crash():
    summary = Metrics(DOMAINS, CLASSES, 0, 1).summary()
    assert summary["metrics"]["samples"] == 0
    assert summary["per_domain"] == {}
    assert summary["running"]["batch"] == []


def test_memory_does_not_grow_with_the_stream():
    logits, labels, domains = stream(8)

    def size_after(batches: int) -> int:
        metrics, groups = Metrics(DOMAINS, CLASSES, batches, 1), GroupCounts()
        for index in range(batches):
            metrics.update(logits, labels, domains)
            groups.add({"bn": index})
        return len(pickle.dumps((metrics, [groups.of("bn")])))

    assert size_after(8 * POINTS) <= size_after(POINTS) + 300  # larger numbers, not more of them


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=100))
def test_group_counts_have_numpys_mean_and_deviation(counts):
    groups = GroupCounts()
    for count in counts:
        groups.add({"bn1": count, "bn2": torch.tensor(2 * count), "bn3": None})
    groups.add({"bn1": None, "bn2": None, "bn3": None})
    assert groups.of("bn1") == pytest.approx((np.mean(counts), np.std(counts)))
    assert groups.of("bn2") == pytest.approx((2 * np.mean(counts), 2 * np.std(counts)))
    assert groups.of("bn3") == (None, None)
