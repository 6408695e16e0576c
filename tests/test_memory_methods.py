"""IABN, NOTE, RoTTA, ViDA and CoTTA: identities, the memories against literal lists, state, and odd batches."""

import io
import math
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_flatten

import findtta
from findtta.algorithms.base import Cost
from findtta.algorithms.memory_bank import BalancedReservoir, ReservoirDraws, TimelyBank
from findtta.algorithms.vida import scales_of
from findtta.algorithms.views import augment, draw_augmentation
from findtta.errors import InputError, OptionError, SkippedUpdateWarning, UnsupportedModelError
from findtta.functional import instance_aware_moments
from findtta.layers.rank_adapters import RankAdapted, find_hosts
from nets import assert_same_snapshot, close, filled, randn, snapshot, tiny

# Learning rates at which a few batches make a difference that can be seen.
LEARNING = {
    "note": {"lr": 0.05, "memory_size": 8, "update_every": 8, "schedule": "samples"},
    "rotta": {"lr": 0.05, "nu": 0.5, "memory_size": 8, "update_every": 8},
    # One-sided, student and teacher start in agreement, and there is nothing to learn.
    "vida": {"lr": 0.05, "lr_branches": 0.05, "ema": 0.5, "ema_branches": 0.5, "views": 2, "symmetric": True},
    "cotta": {"lr": 0.05, "ema": 0.5, "views": 2, "threshold": 1.0},
}
FROZEN = {
    "note": {"lr": 0.0, "bn_momentum": 0.0, "k": math.inf, "memory_size": 8},
    "rotta": {"lr": 0.0, "alpha": 0.0, "nu": 0.0, "memory_size": 8, "update_every": 8},
    "vida": {"lr": 0.0, "lr_branches": 0.0, "views": 2},
    "cotta": {"lr": 0.0, "threshold": 0.0},
}
each_method = pytest.mark.parametrize("method", list(LEARNING))


def pictures(count=8, seed=0, dtype=torch.float32, size=8):
    """Images in [0, 1] of different brightness and contrast."""
    contrast = torch.linspace(0.5, 3, count, dtype=torch.float64)[:, None, None, None]
    return torch.sigmoid(contrast * (randn(count, 3, size, size, seed=seed, dtype=torch.float64) + 0.3)).to(dtype)


def learner(method, model=None, **options):
    return findtta.adapt(tiny() if model is None else model, method, **(LEARNING[method] | options))


def state(adapted):
    """All that is saved but the watching of predictions, as a list of numbers and copies of tensors."""
    saved = adapted.state_dict()
    saved = {name: value for name, value in saved.items() if not name.startswith("adaptation.guard.")}
    leaves, structure = tree_flatten(saved)
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure


def same_state(a, b):
    return a[1] == b[1] and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a[0], b[0], strict=True)
    )


# IABN.


def test_iabn_moments_by_hand():
    positions, k, eps = 9, 1.5, 1e-3
    mean, variance = randn(4, 3, seed=1, dtype=torch.float64), randn(4, 3, seed=2, dtype=torch.float64).square()
    base_mean, base_variance = (
        randn(3, seed=3, dtype=torch.float64),
        randn(3, seed=4, dtype=torch.float64).square(),
    )
    got = instance_aware_moments(mean, variance, base_mean, base_variance, positions, k, eps)
    for sample in range(4):
        for channel in range(3):
            spread = float(base_variance[channel]) + eps
            unbiased = float(variance[sample, channel]) * positions / (positions - 1)
            for value, base, error, result in (
                (float(mean[sample, channel]), float(base_mean[channel]), math.sqrt(spread / positions), got[0]),
                (unbiased, float(base_variance[channel]), spread * math.sqrt(2 / (positions - 1)), got[1]),
            ):
                deviation = value - base
                kept = math.copysign(max(abs(deviation) - k * error, 0), deviation)
                expected = base + kept if result is got[0] else max(base + kept, 0)
                assert float(result[sample, channel]) == pytest.approx(expected, abs=1e-12)


def test_iabn_with_infinite_k_is_source():
    batch = pictures()
    assert torch.equal(findtta.adapt(tiny(), "iabn", k=math.inf)(batch), findtta.adapt(tiny(), "source")(batch))
    assert close(findtta.adapt(tiny(), "iabn", k=1e6)(batch), findtta.adapt(tiny(), "source")(batch), 1e-5)


def test_iabn_with_infinite_k_on_batch_base_is_nearly_tbn():
    batch = pictures(dtype=torch.float64)
    model = tiny(torch.float64)
    unbiased = findtta.adapt(model, "alpha-bn", alpha=0.0, variance="unbiased")(batch)
    assert close(findtta.adapt(model, "iabn", k=math.inf, base="batch")(batch), unbiased, 1e-9)


def test_iabn_does_not_depend_on_the_batch_unless_asked():
    batch = pictures()
    adapted = findtta.adapt(tiny(), "iabn", k=1.0)
    assert close(torch.cat([adapted(sample[None]) for sample in batch]), adapted(batch), 1e-5)
    assert not close(adapted(batch), findtta.adapt(tiny(), "source")(batch), 1e-3)
    dependent = findtta.adapt(tiny(), "iabn", k=1.0, base="batch")
    assert not close(dependent(batch)[:4], dependent(batch[:4]), 1e-3)


@pytest.mark.parametrize("base", ["source", "batch"])
def test_iabn_keeps_nan_where_it_came_from(base):
    batch = pictures()
    batch[3] = math.nan
    output = findtta.adapt(tiny(), "iabn", k=1.0, base=base)(batch)
    assert output[3].isnan().all()
    assert output[[0, 1, 2, 4, 5, 6, 7]].isfinite().all()


def test_iabn_refuses_bad_options():
    with pytest.raises(OptionError, match="base must be 'source' or 'batch', got 'test'"):
        findtta.adapt(tiny(), "iabn", base="test")
    with pytest.raises(OptionError, match="k must be a number of at least 0"):
        findtta.adapt(tiny(), "iabn", k=-1.0)


def test_iabn_is_traced_without_breaks():
    batch = pictures()
    adapted = findtta.adapt(tiny(), "iabn", k=1.0)
    exported = torch.export.export(adapted, (batch,)).module()
    assert close(exported(batch), adapted(batch), 1e-5)


# Identities.


@pytest.mark.parametrize(
    ("method", "host"), [("note", "source"), ("rotta", "source"), ("vida", "tbn"), ("cotta", "tbn")]
)
def test_frozen_method_is_its_host(method, host):
    model = tiny(torch.float64)
    adapted, reference = findtta.adapt(model, method, **FROZEN[method]), findtta.adapt(model, host)
    for seed in range(4):
        batch = pictures(seed=seed, dtype=torch.float64)
        assert close(adapted(batch), reference(batch), 1e-9)


def test_vida_starts_as_its_host_and_branches_then_learn():
    model = tiny(torch.float64)
    adapted = learner("vida", model, restore_probability=0.0)
    batch = pictures(dtype=torch.float64)
    assert close(adapted(batch), findtta.adapt(model, "tbn")(batch), 1e-9)
    branches = [module for module in adapted.student.modules() if isinstance(module, RankAdapted)]
    assert branches
    assert all(branch.low_up.weight.any() and branch.high_up.weight.any() for branch in branches)
    assert not close(adapted(batch), findtta.adapt(model, "tbn")(batch), 1e-6)


def test_vida_scales_follow_the_uncertainty():
    sure = learner("vida", threshold=1e9)
    sure(pictures())
    unsure = learner("vida", threshold=0.0)
    unsure(pictures())
    (low, *_), (lower, *_) = scales_of(sure.model), scales_of(unsure.model)
    assert low.low > 1 > low.high
    assert lower.low < 1 < lower.high
    assert float(low.low + low.high) == pytest.approx(2)
    fixed = learner("vida", threshold=0.0, high_rank_scale="fixed")
    fixed(pictures())
    assert [float(scales.high) for scales in scales_of(fixed.model, fixed.student)] == [1.0, 1.0]


def test_vida_restores_all_or_nothing_at_the_ends():
    source = learner("vida", restore_probability=1.0)
    source(pictures())
    parameters = list(source.source.buffers())[: len(source.trained)]
    assert all(torch.equal(p, kept) for p, kept in zip(source.trained.values(), parameters, strict=True))
    never = learner("vida", restore_probability=0.0)
    never(pictures())
    assert not all(torch.equal(p, kept) for p, kept in zip(never.trained.values(), parameters, strict=True))


def test_vida_places_branches_beside_the_right_convolutions(timm):
    basic = timm.create_model("resnet18", num_classes=10)
    assert {host.kernel_size for host in find_hosts(basic)} == {(3, 3)}
    assert len(find_hosts(basic)) == 16
    bottleneck = timm.create_model("resnet50", num_classes=10)
    assert {host.kernel_size for host in find_hosts(bottleneck)} == {(1, 1)}
    assert len(find_hosts(bottleneck)) == 36


def test_note_does_not_depend_on_how_the_stream_is_cut():
    samples = torch.cat([pictures(seed=seed, dtype=torch.float64) for seed in range(5)])
    whole = learner("note", tiny(torch.float64))(samples)
    for size in (1, 7, 16):
        adapted = learner("note", tiny(torch.float64))
        assert close(torch.cat([adapted(part) for part in samples.split(size)]), whole, 1e-9)


def test_rotta_learns_the_same_however_the_stream_is_cut():
    samples = torch.cat([pictures(seed=seed, dtype=torch.float64) for seed in range(4)])
    one_by_one, cut = (learner("rotta", tiny(torch.float64), nu=0.0, alpha=0.0, lr=0.0) for _ in range(2))
    for part in samples.split(1):
        one_by_one(part)
    for part in samples.split(12):
        cut(part)
    # Nothing moves the teacher here, so labels agree, and with them all that the memory does.
    assert one_by_one.bank.ages() == cut.bank.ages()
    assert torch.equal(one_by_one.bank.contents(), cut.bank.contents())
    assert one_by_one.bank.offers == cut.bank.offers == len(samples)


def test_note_once_per_batch_as_ttab():
    adapted = findtta.adapt(tiny(), "note", lr=0.05)
    assert adapted.options.schedule == "batch"
    before = [parameter.clone() for parameter in adapted.trained.values()]
    adapted(pictures(3))
    assert any(not torch.equal(a, b) for a, b in zip(before, adapted.trained.values(), strict=True))


def test_note_without_iabn_is_batchnorm_with_slow_statistics():
    model = tiny(torch.float64)
    adapted = findtta.adapt(model, "note", use_iabn=False, lr=0.0, bn_momentum=0.3, memory_size=8)
    batch = pictures(dtype=torch.float64)
    assert close(adapted(batch), findtta.adapt(model, "source")(batch), 1e-9)
    reference = tiny(torch.float64).train()
    for module in reference.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.3
    reference(batch)
    assert close(adapted(batch), reference.eval()(batch), 1e-9)


# Presets.


def test_presets():
    def options(method, **given):
        return findtta.adapt(tiny(), method, **given).options

    paper, official = options("note"), options("note", preset="official")
    assert (paper.optimizer, paper.lr, paper.nesterov, paper.schedule) == ("sgd", 1e-4, True, "batch")
    assert (official.optimizer, official.lr, official.weight_decay) == ("adam", 1e-4, 5e-4)
    assert options("note", preset="official", weight_decay=0.0).weight_decay == 0
    rottas = [options("rotta", preset=preset) for preset in ("paper", "official")]
    assert [(rotta.optimizer, rotta.lr) for rotta in rottas] == [("adam", 1e-4), ("adam", 1e-3)]
    assert (options("vida").optimizer, options("vida").lr_branches, options("vida").threshold) == (
        "sgd",
        1e-5,
        0.2,
    )
    vida = options("vida", preset="official")
    assert (vida.optimizer, vida.lr, vida.lr_branches, vida.threshold) == ("adam", 1e-4, 1e-5, 0.05)
    wide = filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten()))
    thousand = findtta.adapt(wide, "vida", num_classes=1000, preset="official").options
    assert (thousand.optimizer, thousand.lr, thousand.ema_branches, thousand.symmetric) == ("sgd", 5e-7, 0.8, True)
    groups = learner("vida", lr=0.5, lr_branches=0.25).optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5, 0.5, 0.5)}, "mean and std must be given together"),
        ({"mean": (0.5,), "std": (0.0,)}, "above 0"),
        ({"view": "weak"}, "view must be 'strong' or 'flip', got 'weak'"),
        ({"alpha": 2.0}, "alpha must be a number from 0 to 1"),
        ({"memory_size": 0}, "memory_size must be a whole number"),
    ],
)
def test_rotta_refuses_bad_options(options, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        findtta.adapt(tiny(), "rotta", **options)


def test_vida_refuses_one_view_and_leaves_a_refused_model_alone():
    with pytest.raises(OptionError, match="views must be a whole number of at least 2"):
        findtta.adapt(tiny(), "vida", views=1)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2)).eval()
    before = snapshot(plain)
    with pytest.raises(UnsupportedModelError, match="no BatchNorm layer"):
        findtta.adapt(plain, "vida", inplace=True)
    assert_same_snapshot(before, snapshot(plain))


# The memories, against the rules written down with lists.


class SeededDraws:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def fullest_class(self, classes):
        return self.random.choice(classes)

    def position(self, count):
        return self.random.randrange(count)

    def uniform(self):
        return self.random.random()


def reservoir_by_lists(labels, capacity, num_classes, draws):
    stored, seen = [[] for _ in range(num_classes)], [0] * num_classes
    for sample, label in enumerate(labels):
        seen[label] += 1
        if sum(map(len, stored)) >= capacity:
            fullest = [c for c in range(num_classes) if len(stored[c]) == max(map(len, stored))]
            if label not in fullest:
                victim = draws.fullest_class(fullest)
            elif draws.uniform() <= len(stored[label]) / seen[label]:
                victim = label
            else:
                continue
            del stored[victim][draws.position(len(stored[victim]))]
        stored[label].append(sample)
    return stored, seen


def cut(count, sizes):
    """Cut ``count`` samples into parts of the given sizes, again and again."""
    start, index = 0, 0
    while start < count:
        yield slice(start, start + sizes[index % len(sizes)])
        start += sizes[index % len(sizes)]
        index += 1


@given(
    labels=st.lists(st.integers(0, 4), max_size=60),
    capacity=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_reservoir_follows_its_rules(labels, capacity, sizes, seed):
    samples = torch.arange(len(labels), dtype=torch.float64)[:, None]
    bank = BalancedReservoir(capacity, SeededDraws(seed))
    for part in cut(len(labels), sizes):
        bank.insert(samples[part], labels[part], [0.0] * len(labels[part]), 5)
        assert len(bank) <= capacity
    stored, seen = reservoir_by_lists(labels, capacity, 5, SeededDraws(seed))
    if labels:
        assert bank.contents()[:, 0].tolist() == [sample for items in stored for sample in items]
        assert bank.occupancy() == [len(items) for items in stored]
        assert [bank.seen.get(label, 0) for label in range(5)] == seen
        assert bank.offers == len(labels)
        # No class is starved by a fuller one: what is missing from a class was never seen.
        assert len(bank) == min(len(labels), capacity)
        most = max(bank.occupancy())
        assert all(count >= min(seen[label], most - 1) for label, count in enumerate(bank.occupancy()))


def timely_by_lists(labels, uncertainties, capacity, num_classes):
    stored = [[] for _ in range(num_classes)]  # of [sample, age, uncertainty]

    def score(age, uncertainty):
        return 1 / (1 + math.exp(-age / capacity)) + uncertainty / math.log(num_classes)

    for sample, (label, uncertainty) in enumerate(zip(labels, uncertainties, strict=True)):
        total = sum(map(len, stored))
        if len(stored[label]) < capacity / num_classes and total < capacity:
            stored[label].append([sample, 0, uncertainty])
        else:
            victims = [label]
            if len(stored[label]) < capacity / num_classes:
                victims = [c for c in range(num_classes) if len(stored[c]) == max(map(len, stored))]
            scored = [(score(*item[1:]), c, item) for c in victims for item in stored[c]]
            highest = max(entry[0] for entry in scored)
            _, victim, item = [entry for entry in scored if entry[0] == highest][-1]
            if highest > score(0, uncertainty):
                stored[victim].remove(item)
                stored[label].append([sample, 0, uncertainty])
        for items in stored:
            for item in items:
                item[1] += 1
    return stored


@given(
    stream=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.5, 1.2, 1.6])), max_size=60),
    capacity=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_timely_bank_follows_its_rules(stream, capacity, sizes):
    labels, uncertainties = [label for label, _ in stream], [value for _, value in stream]
    samples = torch.arange(len(stream), dtype=torch.float64)[:, None]
    bank = TimelyBank(capacity)
    for part in cut(len(stream), sizes):
        bank.insert(samples[part], labels[part], uncertainties[part], 5)
        assert len(bank) <= capacity
        # One more than the quota, which is a real number, at most.
        assert all(count < capacity / 5 + 1 for count in bank.occupancy())
        assert min(bank.ages(), default=1) >= 1
    if stream:
        items = [item for items in timely_by_lists(labels, uncertainties, capacity, 5) for item in items]
        assert bank.contents()[:, 0].tolist() == [item[0] for item in items]
        assert bank.ages() == [item[1] for item in items]
        assert [bank.uncertainty_of_slot[slot] for slot in bank.order()] == [item[2] for item in items]


def test_banks_keep_their_storage_and_refuse_another_shape():
    bank = BalancedReservoir(4, ReservoirDraws(torch.Generator()))
    bank.insert(randn(8, 3), [0, 1] * 4, [0.0] * 8, 2)
    storage = bank.images.data_ptr()
    bank.insert(randn(8, 3), [0, 1] * 4, [0.0] * 8, 2)
    assert bank.images.data_ptr() == storage
    assert bank.images.shape == (4, 3)
    with pytest.raises(InputError, match=re.escape("must keep the shape (3,)")):
        bank.insert(randn(8, 5), [0, 1] * 4, [0.0] * 8, 2)


# The augmentation.


def test_augmentation_keeps_shape_range_and_dtype_and_is_reproducible():
    for images in (pictures(size=9), pictures(dtype=torch.float64), pictures()[:, :1]):
        first, second = (
            augment(images, draw_augmentation(images, torch.Generator().manual_seed(3))) for _ in range(2)
        )
        assert torch.equal(first, second)
        assert first.shape == images.shape
        assert first.dtype == images.dtype
        assert first.min() >= 0
        assert first.max() <= 1
    with pytest.raises(InputError, match="must have the shape"):
        augment(randn(2, 5), draw_augmentation(pictures(), torch.Generator()))


def test_normalised_inputs_are_augmented_as_images():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    images = pictures(dtype=torch.float64)
    constants = [torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std)]
    inputs = (images - constants[0]) / constants[1]
    plain = learner("rotta", tiny(torch.float64)).augmented(images)
    view = learner("rotta", tiny(torch.float64), mean=mean, std=std).augmented(inputs)
    assert close(view * constants[1] + constants[0], plain, 1e-9)
    legacy = learner("rotta", tiny(torch.float64), mean=mean, std=std, legacy_clip=True).augmented(inputs)
    assert legacy.min() >= 0
    assert legacy.max() <= 1
    with pytest.raises(InputError, match="option 'mean'"):
        learner("rotta", mean=(0.5,), std=(1.0,)).augmented(pictures())


# What all methods promise.


@each_method
def test_learns_and_leaves_the_model_alone(method):
    model = tiny()
    before = snapshot(model)
    adapted = learner(method, model)
    fresh = state(adapted)
    outputs = [adapted(pictures(seed=seed)) for seed in range(3)]
    assert all(output.isfinite().all() and not output.requires_grad for output in outputs)
    assert not same_state(fresh, state(adapted))
    assert not close(adapted(pictures()), outputs[0], 1e-4)
    assert_same_snapshot(before, snapshot(model))
    plain = findtta.unwrap(adapted)
    assert torch.equal(plain(pictures()), model(pictures()))
    assert list(plain.state_dict()) == list(model.state_dict())


@each_method
def test_in_place_and_back(method):
    model = tiny()
    before = snapshot(model)
    adapted = learner(method, model)
    in_place = findtta.adapt(model, method, inplace=True, **LEARNING[method])
    for seed in range(2):
        assert torch.equal(adapted(pictures(seed=seed)), in_place(pictures(seed=seed)))
    assert findtta.unwrap(in_place) is model
    assert_same_snapshot(before, snapshot(model))


@each_method
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_reset_is_exact(method, optimizer):
    adapted = learner(method, optimizer=optimizer)
    stream = [pictures(seed=seed) for seed in range(3)]
    first = [adapted(batch) for batch in stream]
    adapted.reset()
    assert same_state(state(adapted), state(learner(method, optimizer=optimizer)))
    assert all(torch.equal(a, adapted(batch)) for a, batch in zip(first, stream, strict=True))


@each_method
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_saved_in_the_middle_goes_on_bit_for_bit(method, optimizer):
    stream = [pictures(5, seed=seed) for seed in range(6)]
    adapted = learner(method, optimizer=optimizer)
    for batch in stream[:3]:
        adapted(batch)
    file = io.BytesIO()
    torch.save(adapted.state_dict(), file)
    file.seek(0)
    loaded = learner(method, optimizer=optimizer)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert same_state(state(adapted), state(loaded))
    assert all(torch.equal(adapted(batch), loaded(batch)) for batch in stream[3:])
    assert same_state(state(adapted), state(loaded))


@each_method
def test_single_samples_short_and_empty_batches(method):
    adapted = learner(method)
    for size in (1, 1, 3, 8, 2, 1, 17):
        assert adapted(pictures(size)).isfinite().all()
    assert adapted(pictures(4)[:0]).shape == (0, 4)
    assert all(leaf.isfinite().all() for leaf in state(adapted)[0] if isinstance(leaf, torch.Tensor))


@each_method
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
def test_poisoned_batch_is_skipped_and_nothing_is_lost(method, poison):
    adapted = learner(method)
    for seed in range(2):
        adapted(pictures(seed=seed))
    before = state(adapted)
    batch = pictures(seed=5)
    batch[2] = poison
    with pytest.warns(SkippedUpdateWarning, match="did not learn from this batch"):
        adapted(batch)
    assert all(leaf.isfinite().all() for leaf in state(adapted)[0] if isinstance(leaf, torch.Tensor))
    if not math.isfinite(poison):
        assert same_state(before, state(adapted))
    assert adapted(pictures(seed=6)).isfinite().all()


@each_method
def test_same_seed_same_result_and_another_seed_another(method):
    def last(seed):
        adapted = learner(method, seed=seed)
        return [adapted(pictures(seed=index)) for index in range(5)][-1]

    assert torch.equal(last(0), last(0))
    assert not torch.equal(last(0), last(1))


@each_method
def test_predict_after_the_update(method):
    before, after = learner(method), learner(method, predict="after")
    for seed in range(2):
        batch = pictures(seed=seed)
        first, second = before(batch), after(batch)
    assert not torch.equal(first, second)
    # CoTTA predicts with the source model and two views.
    more = 3 if method == "cotta" else 1
    assert after.cost == Cost(before.cost.forward + more, before.cost.backward)


@each_method
@pytest.mark.parametrize("predict", ["before", "after"])
def test_declared_cost_is_true(method, predict, monkeypatch):
    adapted = learner(method, predict=predict)
    passes = {"forward": 0, "backward": 0}

    def count(kind):
        passes[kind] += 1

    for network in {adapted.model, getattr(adapted, "student", adapted.model)}:
        network.register_forward_pre_hook(lambda *_: count("forward"))
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda *args, **kw: (count("backward"), backward(*args, **kw)))
    for seed in range(2):
        adapted(pictures(seed=seed))
    assert (passes["forward"], passes["backward"]) == (2 * adapted.cost.forward, 2 * adapted.cost.backward)


def test_teacher_and_student_share_what_is_never_trained():
    adapted = learner("rotta")
    shared = {id(p) for p in adapted.model.parameters()} & {id(p) for p in adapted.student.parameters()}
    assert len(shared) == len(list(tiny().parameters())) - len(adapted.trained)


class VectorNet(nn.Sequential):
    """A network for vectors, with BatchNorm1d only."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.append(nn.Linear(8, 3))


@each_method
def test_vectors_and_batchnorm1d(method):
    options = {} if method == "note" else {"view": lambda inputs: inputs + 0.1}
    adapted = learner(method, filled(VectorNet()), **options)
    for seed in range(3):
        assert adapted(randn(8, 6, seed=seed)).isfinite().all()
    if method != "note":
        with pytest.raises(InputError, match="function of your own as the option 'view'"):
            learner(method, filled(VectorNet()))(randn(8, 6))


@pytest.mark.slow
@each_method
def test_resnet18(method, timm):
    model = filled(timm.create_model("resnet18", num_classes=10))
    adapted = learner(method, model, lr=1e-4)
    for seed in range(2):
        assert adapted(pictures(8, seed=seed, size=32)).isfinite().all()
