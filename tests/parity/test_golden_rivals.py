"""Parity with the authors' own outputs: UnMix-TNS, ROID and CoTTA."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

import findtta
from findtta.layers.surgery import adaptive_layers
from golden import Normalized, Recording, affine, each_run, optimizer_options, replay


@each_run("unmixtns")
def test_unmix_tns(recording):
    hp = recording.hp
    adapted = findtta.adapt(
        recording.network(),
        "unmix-tns",
        components=hp["components"],
        temperature=hp["temperature"],
        momentum=0.1,
        reference_batch=hp["batch_size_max"],
    )
    layers = [layer for _, layer in adapted.layers()]
    start = torch.from_numpy(recording.fields[f"{recording.run}.initial_mean"])
    for layer, mean in zip(layers, start.split([layer.channels for layer in layers], 1), strict=True):
        layer.component_mean.copy_(mean)

    def after_batch(index: int) -> None:
        row = recording.recorded_states().get(index)
        if row is not None and recording.precision == "f64":
            for field, name in (("component_mean", "component_mean"), ("component_var", "component_variance")):
                kept = torch.cat([layer.get_buffer(name) for layer in layers], 1)
                recording.assert_close(kept[: recording[field].shape[1]], field, row)

    logits, _ = replay(adapted, recording.stream(), after_batch)
    recording.assert_same_logits(logits)


def each_view(recording: Recording, field: str, sizes: list[int]) -> Iterator[Tensor]:
    """The views of a run, stored in 8 bits, one after the other."""
    pixels = torch.from_numpy(recording.fields[f"{recording.run}.{field}"]).to(recording.dtype) / 255
    return iter(pixels.flatten(0, -4).movedim(-1, 1).contiguous().split(sizes))


@each_run("roid")
def test_roid(recording):
    hp = recording.hp
    view = "flip"
    if hp["view"] != "flip":
        counts = recording.fields[f"{recording.run}.student_view_count"].tolist()
        views = each_view(recording, "student_view_uint8", counts)

        def view(images: Tensor) -> Tensor:
            stored = next(views)
            assert stored.shape == images.shape
            return stored

    adapted = findtta.adapt(
        Normalized(recording),
        "roid",
        temperature=hp["temperature"],
        source_weight=1 - hp["momentum_src"],
        view=view,
        **optimizer_options(recording),
    )
    states = []

    def after_batch(index: int) -> None:
        recording.assert_same(int(adapted.selected.sum()), "n_selected", index)
        recording.assert_close(adapted.average_prediction, "class_probs_ema", index)
        if index in (0, len(recording.inputs["images"]) - 1):
            states.append(affine(adapted))

    logits, _ = replay(adapted, recording.images()[: len(recording["logits"])], after_batch)
    recording.assert_same_logits(logits)
    recording.assert_same_affine(states)


@each_run("cotta")
def test_cotta(recording):
    hp, run, fields = recording.hp, recording.run, recording.fields
    views = each_view(recording, "teacher_view_uint8", [64] * fields[f"{run}.teacher_view_uint8"].shape[0])
    count = int(fields[f"{run}.restored_count"])
    restored = iter(torch.from_numpy(np.unpackbits(fields[f"{run}.restored_bits"], axis=1)[:, :count]).bool())
    adapted = findtta.adapt(
        Normalized(recording),
        "cotta",
        views=hp["n_augmentations"],
        threshold=hp["anchor_threshold"],
        ema=hp["teacher_momentum"],
        restore_probability=hp["restore_probability"],
        symmetric=False,
        view=lambda images: next(views),
        **optimizer_options(recording),
    )
    adapted.draw_restored = lambda *_: next(restored)
    names = [f"network.{name}" for name in fields["parameter_names"]]
    assert adapted.trained_names == names
    assert [p.numel() for p in adapted.trained.values()] == fields["parameter_sizes"].tolist()

    def after_batch(index: int) -> None:
        if index in (0, hp["batches"] - 1):
            for who, model in (("student", adapted.student), ("teacher", adapted.model)):
                layers = [layer.norm for _, layer in adaptive_layers(model)]
                for field, tensors in {
                    "weight": [layer.weight for layer in layers],
                    "bias": [layer.bias for layer in layers],
                    "conv1": [model.get_parameter(names[0])],
                    "classifier": [model.get_parameter(names[-1])],
                }.items():
                    recording.assert_close(torch.cat(tensors).detach(), f"{who}_{field}", min(index, 1))

    logits, _ = replay(adapted, recording.images()[: len(recording["logits"])], after_batch)
    recording.assert_same_logits(logits)
    assert next(restored, None) is None or recording.batches
