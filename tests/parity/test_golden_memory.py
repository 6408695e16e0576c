"""Parity with the authors' own outputs: IABN, and the methods that keep a memory of the stream."""

import numpy as np
import pytest
import torch
from torch import Tensor

import findtta
from findtta.algorithms.views import Augmentation, augment, jitter
from findtta.layers.surgery import adaptive_layers
from golden import SETS, Normalized, Recording, arrays, each_run, optimizer_options, replay

# Adam's first steps, of full size whatever the gradient, carry more of the difference between two float32 runs
# into single parameters than reaches the logits.
F32_PARAMETER_SCALE = 10


@each_run("iabn")
def test_iabn(recording):
    adapted = findtta.adapt(
        recording.network(), "iabn", k=recording.hp["k"], base=recording.run.removesuffix("_base")
    )
    logits, _ = replay(adapted, recording.stream())
    recording.assert_same_logits(logits)


def classes_of(bank):
    """The class of each item, in the order of the bank's contents."""
    return [label for label, count in enumerate(bank.occupancy()) for _ in range(count)]


class RecordedDraws:
    """Replays the draws of a recording, and makes sure that the same ones are asked for."""

    def __init__(self, recording: Recording) -> None:
        self.draws = iter(list(zip(recording["draw_kind"], recording["draw_value"], strict=True)))
        stored = [list(positions) for positions in recording["memory_index"]]
        self.orders = iter(
            [
                [kept.index(position) for position in order if position >= 0]
                for kept, order in zip(stored, recording["train_order"], strict=True)
            ]
        )

    def _next(self, kind: int) -> float:
        recorded_kind, value = next(self.draws)
        assert recorded_kind == kind
        return float(value)

    def fullest_class(self, classes):
        picked = int(self._next(0))
        assert picked in classes
        return picked

    def position(self, count):
        position = int(self._next(1))
        assert 0 <= position < count
        return position

    def uniform(self):
        return self._next(2)

    def permutation(self, count):
        order = next(self.orders)
        assert len(order) == count
        return order


@each_run("note")
def test_note(recording):
    hp = recording.hp
    adapted = findtta.adapt(
        recording.network(),
        "note",
        schedule="samples",
        update_every=hp["update_every"],
        memory_size=hp["memory_size"],
        k=hp["iabn_k"],
        bn_momentum=hp["bn_momentum"],
        **optimizer_options(recording),
    )
    adapted.bank.draws = draws = RecordedDraws(recording)
    batches = recording.stream()
    samples = batches.flatten(0, 1)
    statistics = []

    def after_batch(index: int) -> None:
        bank = adapted.bank
        recording.assert_same(bank.occupancy(), "occupancy", index)
        seen = [bank.seen.get(label, 0) for label in range(len(bank.occupancy()))]
        recording.assert_same(seen, "seen_counter", index)
        recording.assert_same(
            padded(classes_of(bank), len(recording["memory_class"][index])), "memory_class", index
        )
        assert torch.equal(bank.contents(), samples[recording["memory_index"][index][: len(bank)].astype(int)])
        layers = [layer for _, layer in adapted.layers()]
        statistics.append([torch.cat([getattr(x.moving, y) for x in layers]) for y in ("mean", "variance")])

    logits, learned = replay(adapted, batches, after_batch)
    recording.assert_same_logits(logits)
    recording.assert_same_affine(learned)
    for batch, row in recording.recorded_states().items():
        recording.assert_close(statistics[batch][0], "running_mean", row)
        recording.assert_close(statistics[batch][1], "running_var", row)
    if not recording.batches:
        assert next(draws.draws, None) is None
        assert next(draws.orders, None) is None


class RecordedViews:
    """Replays the student's views, stored in 8 bits, updates one after the other."""

    def __init__(self, recording: Recording) -> None:
        fields, run = recording.fields, recording.run
        pixels = torch.from_numpy(fields[f"{run}.student_view_uint8"]).movedim(-1, 1).to(recording.dtype) / 255
        self.views = iter(pixels.split(fields[f"{run}.student_view_count"].tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        view = next(self.views)
        assert view.shape == images.shape
        return view


@each_run("rotta")
def test_rotta(recording):
    hp = recording.hp
    adapted = findtta.adapt(
        Normalized(recording),
        "rotta",
        alpha=hp["alpha"],
        nu=hp["nu"],
        memory_size=hp["memory_size"],
        update_every=hp["update_frequency"],
        timeliness=hp["lambda_t"],
        uncertainty=hp["lambda_u"],
        view="flip" if hp["student_view"] == "flip" else RecordedViews(recording),
        **optimizer_options(recording),
    )
    batches = recording.images()[: len(recording["occupancy"])]
    samples = batches.flatten(0, 1)
    parameter_scale = F32_PARAMETER_SCALE if recording.precision == "f32" else 1

    def after_batch(index: int) -> None:
        bank = adapted.bank
        count, width = len(bank), len(recording["memory_class"][index])
        recording.assert_same(bank.occupancy(), "occupancy", index)
        recording.assert_same(padded(classes_of(bank), width), "memory_class", index)
        recording.assert_same(padded(bank.ages(), width), "memory_age", index)
        assert torch.equal(bank.contents(), samples[recording["memory_index"][index][:count].astype(int)])
        recorded = recording["memory_uncertainty"][index]
        assert np.isnan(recorded[count:]).all()
        assert (
            np.abs(np.asarray([bank.uncertainty_of_slot[slot] for slot in bank.order()]) - recorded[:count]).max()
            <= recording.tolerance
        )
        if index == 0 or (index == len(batches) - 1 and not recording.batches):
            row = 0 if index == 0 else -1
            for who, model in (("student", adapted.student), ("teacher", adapted.model)):
                layers = [layer for _, layer in adaptive_layers(model)]
                for field, tensors in {
                    "weight": [layer.norm.weight.detach() for layer in layers],
                    "bias": [layer.norm.bias.detach() for layer in layers],
                    "mean": [layer.moving.mean for layer in layers],
                    "var": [layer.moving.variance for layer in layers],
                }.items():
                    recording.assert_close(torch.cat(tensors), f"{who}_{field}", row, parameter_scale)

    logits, _ = replay(adapted, batches, after_batch)
    recording.assert_same_logits(logits)


def padded(values: list[int], width: int) -> list[int]:
    return values + [-1] * (width - len(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draw", range(4))
@pytest.mark.skipif("A" not in SETS, reason="the recorded augmentations are of CIFAR images, in set A")
def test_rotta_augmentation(draw, dtype):
    fields = arrays("A", "rotta_augment")
    images = torch.from_numpy(fields["images"]).movedim(-1, 1).to(dtype) / 255
    drawn = Augmentation(
        jitter_order=tuple(fields["jitter_order"][draw].tolist()),
        jitter_factors=tuple(fields["jitter_factor"][draw].tolist()),
        angle=float(fields["affine_angle"][draw]),
        shift=tuple(fields["affine_translate"][draw].tolist()),
        scale=float(fields["affine_scale"][draw]),
        blur_sigma=float(fields["blur_sigma"][draw]),
        flip=bool(fields["flipped"][draw]),
    )
    jittered = jitter(images, drawn.jitter_order, drawn.jitter_factors)
    torch.testing.assert_close(jittered.float(), torch.from_numpy(fields["after_jitter"][draw]), rtol=0, atol=1e-6)
    augmented = augment(images, drawn).float()
    torch.testing.assert_close(augmented, torch.from_numpy(fields["after_flip"][draw]), rtol=0, atol=1e-5)
