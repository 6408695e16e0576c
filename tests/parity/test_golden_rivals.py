"""Parity with the authors' own outputs: UnMix-TNS, ROID and CoTTA."""

import torch

import findtta
from golden import each_run, replay


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
