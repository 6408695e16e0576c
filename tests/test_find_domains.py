"""FIND with a memory of domains: what it computes, and what it keeps."""

import copy
import math

import pytest
import torch
from torch import nn

import findtta
import reference
from findtta.algorithms.find_domains import DomainNorm
from findtta.errors import InputError, OptionError
from findtta.functional.domains import DESCRIPTION, describe_images
from nets import (
    CalledTwice,
    PreActivation,
    TinyNet,
    close,
    filled,
    images,
    randn,
    replaced,
    same_bits,
    stream,
    tiny,
)

DOUBLE = torch.float64


def remembering(model=None, **options):
    return findtta.adapt(tiny() if model is None else model, "find-domains", **options)


def state(adapted):
    return {name: value.clone() for name, value in adapted.state_dict().items() if "adaptation" in name}


def same_state(one, other):
    assert one.keys() == other.keys()
    return all(same_bits(one[name], other[name]) for name in one)


@pytest.mark.parametrize("net", [TinyNet, PreActivation])
@pytest.mark.parametrize("options", [{}, {"domains": 3, "memory": 5}, {"alpha": 0.2, "threshold": 0.5}])
def test_network_equals_the_network_of_reference_layers(net, options):
    model = filled(net(), dtype=DOUBLE)
    adapted, batch = remembering(model, **options), {}
    memory = reference.ReferenceMemory(options.get("domains", 32), options.get("memory", 128), 4096)
    layers = len(adapted.report())
    settings = {name: value for name, value in options.items() if name in ("alpha", "threshold")}
    literal = replaced(model, lambda norm: reference.ReferenceDomains(norm, memory, batch, layers, **settings))
    for seed, count in enumerate((5, 1, 7, 4)):
        inputs = images(count, seed=seed, dtype=DOUBLE)
        want = reference.domains_forward(literal, memory, batch, describe_images(inputs), inputs)
        assert close(adapted(inputs), want, 1e-9)


def test_alpha_one_is_the_plain_model_to_the_bit():
    model, batch = tiny(), images(9)
    with torch.no_grad():
        assert same_bits(remembering(model, alpha=1)(batch), model(batch))


def test_a_huge_threshold_leaves_the_plain_model():
    model, batch = tiny(DOUBLE), images(9, dtype=DOUBLE)
    with torch.no_grad():
        assert close(remembering(model, threshold=1e6)(batch), model(batch), 1e-12)


def test_single_images_of_a_known_kind_get_what_they_get_in_a_batch():
    adapted = remembering(tiny(DOUBLE))
    kinds = [images(12, seed=seed, dtype=DOUBLE, size=16) for seed in range(30)]
    for batch in kinds[:-1]:
        adapted(batch)
    together, alone = copy.deepcopy(adapted), copy.deepcopy(adapted)
    want = together(kinds[-1])
    got = torch.cat([alone(image[None]) for image in kinds[-1]])
    fresh = torch.cat([remembering(tiny(DOUBLE))(image[None]) for image in kinds[-1]])
    assert (got - want).abs().mean() < 0.2 * (fresh - want).abs().mean()


def test_the_state_has_a_fixed_size():
    adapted = remembering(domains=4)
    before = {name: value.shape for name, value in state(adapted).items()}
    for batch in stream(20):
        adapted(batch)
    after = state(adapted)
    assert {name: value.shape for name, value in after.items()} == before
    channels = [layer.channels for _, layer in adapted.layers()]
    numbers = sum(value.numel() for value in after.values())
    assert numbers == 4 * (DESCRIPTION + 1 + 1 + 2 + sum(2 * count + 1 for count in channels))
    assert all(value.isfinite().all() for value in after.values())


def test_a_call_that_fails_is_not_remembered():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn0, self.bn1 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x, fail=False):
            x = self.bn0(x)
            if fail:
                raise RuntimeError("between the layers")
            return self.bn1(x)

    adapted = remembering(filled(Fails()))
    adapted(images())
    before = state(adapted)
    with pytest.raises(RuntimeError, match="between the layers"):
        adapted(images(seed=3), fail=True)
    assert same_state(state(adapted), before)
    assert adapted.call.passing is None


def test_a_layer_called_twice_remembers_both():
    adapted = remembering(filled(CalledTwice()))
    adapted(images(6))
    numbers = {name: float(layer.sums[:, -1].sum()) for name, layer in adapted.layers()}
    assert sorted(numbers.values()) == [6, 12]


def test_an_image_with_nan_is_not_remembered():
    batch = images(9)
    others = torch.arange(9) != 4
    batch[4, 0, 2, 2] = torch.nan
    dirty, clean = remembering(), remembering()
    outputs = dirty(batch)
    torch.testing.assert_close(outputs[others], clean(batch[others]))
    assert outputs[4].isnan().all()
    torch.testing.assert_close(state(dirty), state(clean))


def test_features_that_overflow_are_not_remembered():
    class Overflows(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn0, self.bn1 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.bn0(x)
            return self.bn1(torch.where(x[:, :1, :1, :1] > 90, y * math.inf, y))

    batch = images(6)
    batch[2, 0, 0, 0] = 99
    adapted = remembering(filled(Overflows()))
    outputs = adapted(batch)
    assert outputs[torch.arange(6) != 2].isfinite().all()
    assert [float(layer.sums[:, -1].sum()) for _, layer in adapted.layers()] == [6, 5]
    assert all(value.isfinite().all() for value in state(adapted).values())


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 12), (8, 5, 4, 4, 4)])
def test_inputs_that_are_not_images_are_told_by_the_first_layer(shape):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 5: nn.BatchNorm3d}[len(shape)]
    adapted = remembering(filled(nn.Sequential(kind(5), nn.ReLU(), kind(5))))
    for seed in range(10):
        drift = 4 * (torch.arange(8) % 2).view(-1, *[1] * (len(shape) - 1))
        outputs = adapted(randn(*shape, seed=seed) * 0.3 + drift)
    assert outputs.isfinite().all()
    members = next(adapted.layers())[1].last_batch["members"].argmax(1)
    assert not set(members[::2].tolist()) & set(members[1::2].tolist())


def test_parts_of_images_belong_where_their_image_does():
    class Quarters(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn0, self.bn1 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):
            parts = self.bn0(x).unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
            return self.bn1(parts.reshape(-1, 3, 4, 4))

    adapted = remembering(filled(Quarters()))
    adapted(images(5))
    whole, parts = (layer.sums[:, -1] for _, layer in adapted.layers())
    assert same_bits(parts, 4 * whole)
    assert same_bits(adapted.drift[:, 1], whole)


def test_rows_that_are_no_parts_of_images_get_the_source_statistics():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn0, self.bn1 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.bn1(self.bn0(x)[:3])

    model, batch = filled(Pooled()), images(8)
    adapted = remembering(model)
    got = adapted(batch)
    first = remembering(model.bn0)(batch)
    with torch.no_grad():
        torch.testing.assert_close(got, model.bn1(first[:3]))


def test_layers_without_statistics_are_as_in_the_source_model():
    forgetful, batch = nn.BatchNorm2d(3, track_running_stats=False), images()
    torch.testing.assert_close(remembering(forgetful)(batch), forgetful(batch))


def test_a_layer_on_its_own_is_refused():
    adapted = remembering()
    with pytest.raises(InputError, match="called outside of the model"):
        adapted.model.bn1(randn(2, 6, 4, 4))


def test_methods_of_the_model_remember_too():
    class Parts(TinyNet):
        def forward_features(self, x):
            return self.stem(x)

    adapted = remembering(filled(Parts()))
    adapted.forward_features(images(6))
    assert float(adapted.counts.sum()) == 6


def test_a_source_checkpoint_starts_anew():
    adapted = remembering()
    for batch in stream(2):
        adapted(batch)
    adapted.load_state_dict(tiny(seed=7).state_dict())
    assert same_state(state(adapted), state(remembering(tiny(seed=7))))


def test_a_model_in_half_precision_keeps_its_memory_in_float32():
    adapted = remembering(tiny().bfloat16())
    assert adapted(images().bfloat16()).isfinite().all()
    assert {value.dtype for value in state(adapted).values()} == {torch.float32}


def test_merging_with_an_empty_replica_changes_nothing():
    adapted = remembering()
    for batch in stream(3):
        adapted(batch)
    before = state(adapted)
    adapted.merge(remembering())
    assert same_state(state(adapted), before)


def test_an_empty_replica_takes_over_what_another_knows():
    one, other = remembering(), remembering()
    for batch in stream(3):
        one(batch)
    other.merge(one)
    assert float(other.counts.sum()) == pytest.approx(float(one.counts.sum()))
    for (_, mine), (_, theirs) in zip(other.layers(), one.layers(), strict=True):
        torch.testing.assert_close(mine.sums.sum(0), theirs.sums.sum(0))


def test_merged_replicas_know_the_kinds_of_both():
    sharp, smooth = (
        [
            randn(6, 3, 16 // size, 16 // size, seed=seed).repeat_interleave(size, 2).repeat_interleave(size, 3)
            for seed in range(12)
        ]
        for size in (1, 8)
    )
    first, second = remembering(), remembering()
    for one, other in zip(sharp[1:], smooth[1:], strict=True):
        first(one)
        second(other)
    before = copy.deepcopy(first)
    first.merge(second)
    assert (first.counts <= first.options.memory).all()
    assert close(first(sharp[0]), before(sharp[0]), 1e-3)
    merged, alone, want = first(smooth[0]), before(smooth[0]), second(smooth[0])
    assert (merged - want).abs().max() < 0.2 * (alone - want).abs().max()


def test_only_replicas_are_merged():
    with pytest.raises(OptionError, match="must be a replica of this model"):
        remembering().merge(remembering(memory=7))
    with pytest.raises(OptionError, match="must be a replica of this model"):
        remembering().merge(remembering(filled(PreActivation())))


def test_the_domains_met_are_listed():
    adapted = remembering()
    assert adapted.domains() == []
    for batch in stream(3):
        adapted(batch)
    found = adapted.domains()
    assert sum(domain.share for domain in found) == pytest.approx(1)
    assert sum(domain.samples for domain in found) == pytest.approx(24)
    assert all(domain.drift > 0 for domain in found)
    assert [domain.share for domain in found] == sorted((domain.share for domain in found), reverse=True)


def test_the_report_counts_domains():
    adapted = remembering()
    adapted(images(8))
    members = next(layer for _, layer in adapted.layers() if isinstance(layer, DomainNorm)).last_batch["members"]
    assert {layer.groups for layer in adapted.report()} == {int((members.sum(0) > 0).sum())}
    assert all(layer.score > 0 for layer in adapted.report())
