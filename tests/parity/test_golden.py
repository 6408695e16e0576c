"""Parity with the authors' own outputs: methods whose state is parameters."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import findtta
from findtta.functional import partition
from golden import F64_TOLERANCE, SETS, Recording, arrays, each_run, optimizer_options, replay


@each_run("source")
def test_source_is_the_network_of_the_recordings(recording):
    logits, _ = replay(findtta.adapt(recording.network(), "source"), recording.stream())
    recording.assert_same_logits(logits)


@each_run("norm")
def test_tbn(recording):
    logits, _ = replay(findtta.adapt(recording.network(), "tbn"), recording.stream())
    recording.assert_same_logits(logits)


@each_run("alpha_bn")
def test_alpha_bn(recording):
    weight = recording.hp["source_weight"]
    adapted = findtta.adapt(recording.network(), "alpha-bn", alpha=weight, variance="unbiased")
    logits, _ = replay(adapted, recording.stream())
    recording.assert_same_logits(logits)


@each_run("tent")
def test_tent(recording):
    adapted = findtta.adapt(recording.network(), "tent", **optimizer_options(recording))
    logits, learned = replay(adapted, recording.stream())
    recording.assert_same_logits(logits)
    recording.assert_same_affine(learned)


@each_run("eata")
def test_eata(recording):
    adapted = findtta.adapt(
        recording.network(),
        "eata",
        **optimizer_options(recording),
        entropy_margin=recording.hp["e_margin"],
        redundancy_margin=recording.hp["d_margin"],
        fisher_weight=recording.hp.get("fisher_alpha"),
    )
    if "fisher_alpha" in recording.hp:
        adapted.set_fisher(fisher_table(adapted, recording))
    counts = []

    def after_batch(index: int) -> None:
        counts.append((int(adapted.reliable.sum()), int(adapted.selected.sum())))
        recording.assert_close(adapted.average_prediction, "probs_ema", index)

    logits, learned = replay(adapted, recording.stream(), after_batch)
    recording.assert_same_logits(logits)
    recording.assert_same_affine(learned)
    recording.assert_same([reliable for reliable, _ in counts], "n_reliable", slice(len(counts)))
    recording.assert_same([selected for _, selected in counts], "n_selected", slice(len(counts)))


def fisher_table(adapted: findtta.Adapted, recording: Recording) -> dict[str, Tensor]:
    sizes = [layer.channels for _, layer in adapted.layers()]
    parts = {
        part: torch.from_numpy(recording.fields[f"fisher.table_{part}"]).to(recording.dtype).split(sizes)
        for part in ("weight", "bias")
    }
    return {
        f"{name}.{part}": parts[part][index]
        for index, (name, _) in enumerate(adapted.layers())
        for part in ("weight", "bias")
    }


class Scaled(nn.Module):
    """A model with its logits multiplied, so that SAR's recovery is triggered."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model = model
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) * self.factor


@each_run("sar")
def test_sar(recording):
    adapted = findtta.adapt(
        Scaled(recording.network(), recording.hp.get("logit_scale", 1.0)),
        "sar",
        **optimizer_options(recording),
        entropy_margin=recording.hp["e_margin"],
        rho=recording.hp["rho"],
        recovery_threshold=recording.hp["recovery_threshold"],
        sticky_recovery=True,
        momentum_on_empty=True,
    )
    recoveries = []

    def after_batch(index: int) -> None:
        recoveries.append(adapted.recoveries)
        recording.assert_close(np.array(adapted.average_loss), "ema", index)

    logits, learned = replay(adapted, recording.stream(), after_batch)
    recording.assert_same_logits(logits)
    recording.assert_same_affine(learned)
    recording.assert_same(np.diff([0, *recoveries]), "recovered", slice(len(recoveries)))


@each_run("deyo")
def test_deyo(recording):
    adapted = findtta.adapt(
        recording.network(),
        "deyo",
        **optimizer_options(recording),
        entropy_threshold=recording.hp["ent_threshold"],
        entropy_margin=recording.hp["ent0"],
        plpd_threshold=recording.hp["plpd_threshold"],
        patches_per_side=recording.hp["patch_len"],
        shuffled="reliable",
    )
    drawn = torch.from_numpy(recording["perm"]).long()
    batch = 0

    def recorded_permutations(count: int) -> Tensor:
        rows = drawn[batch][drawn[batch, :, 0] >= 0]
        assert len(rows) == count
        return rows

    adapted.draw_permutations = recorded_permutations

    def after_batch(index: int) -> None:
        nonlocal batch
        batch += 1
        recording.assert_same(int(adapted.reliable.sum()), "n_entropy", index)
        recording.assert_same(int(adapted.selected.sum()), "n_selected", index)
        np.testing.assert_array_equal(adapted.reliable.numpy(), ~np.isnan(recording["plpd"][index]))
        recording.assert_close(adapted.plpd, "plpd", (index, adapted.reliable.numpy()))

    logits, learned = replay(adapted, recording.stream(), after_batch)
    recording.assert_same_logits(logits)
    recording.assert_same_affine(learned)


def same_partition(labels: Tensor, other: np.ndarray) -> bool:
    """Whether two labelings make the same groups, however they are numbered."""
    pairs = set(zip(labels.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(labels.unique()) == len(np.unique(other))


@pytest.mark.parametrize("name", SETS)
def test_partitions_equal_those_of_finch(name):
    fields = arrays(name, "finch")
    values = {0: iter(fields["real_values"].astype(np.float64)), 1: iter(fields["synthetic_values"] / 256)}
    labels = iter(fields["labels"])
    compared = 0
    for (rows, channels), kind, gap in zip(fields["shapes"], fields["kind"], fields["neighbour_gap"], strict=True):
        matrix = np.fromiter(values[int(kind)], np.float64, rows * channels).reshape(rows, channels)
        expected = np.fromiter(labels, np.int64, rows)
        if gap > 1e-6:  # a smaller one is beyond what their float32 distances resolve
            assert same_partition(partition(torch.from_numpy(matrix)), expected)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize("name", SETS)
def test_partitions_equal_those_of_the_predecessor(name):
    """The groups that DYN, the FIND authors' earlier method, made in every layer."""
    fields = arrays(name, "dyn")
    for layer, labels in enumerate(fields["labels"]):
        for means, expected in zip(fields[f"means.{layer}"], labels, strict=True):
            assert same_partition(partition(torch.from_numpy(means)), expected)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("C", 1),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in SETS),
        *(pytest.param(name, None, marks=pytest.mark.nightly) for name in SETS),
    ],
)
def test_find_with_the_variance_of_the_predecessor_equals_it(name, batches):
    """The logits of DYN, whose alpha is 0.8 as a float32."""
    recording = Recording(name, "source", "source", "f64", batches)
    alpha = float(np.float32(0.8))
    adapted = findtta.adapt(recording.network(), "find", alpha=alpha, variance="instance-unbiased")
    logits, _ = replay(adapted, recording.stream())
    recorded = torch.from_numpy(arrays(name, "dyn")["f64.logits"])[:batches]
    assert float((logits - recorded).abs().max()) <= F64_TOLERANCE
