"""Methods that learn: TENT, EATA, SAR, DeYO and ROID."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

import findtta
from findtta.algorithms.base import Cost
from findtta.algorithms.deyo import shuffle_patches
from findtta.algorithms.eata import estimate_fisher
from findtta.algorithms.learning import GradientAdapted
from findtta.collapse import CollapseGuard
from findtta.errors import InputError, OptionError, SkippedUpdateWarning, UnsupportedModelError
from nets import TinyNet, filled, images, randn, stream

# Margins that select some samples of every batch, so that there is something to learn.
LEARNING = {
    "tent": {},
    "eata": {"entropy_margin": 1.3, "redundancy_margin": 0.99},
    "sar": {"entropy_margin": 1.3},
    "deyo": {"entropy_threshold": 1.3, "plpd_threshold": -0.5},
    "roid": {"preset": "paper", "prior_correction": False},
}
SELECTING_NOTHING = {
    "eata": {"entropy_margin": -1},
    "sar": {"entropy_margin": -1},
    "deyo": {"entropy_threshold": -1},
}
METHODS = pytest.mark.parametrize("method", list(LEARNING))
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


def learning(method: str, model: nn.Module | None = None, **options: object) -> GradientAdapted:
    chosen = {"lr": 1e-2} | LEARNING[method] | options
    adapted = findtta.adapt(filled(TinyNet()) if model is None else model, method, **chosen)
    assert isinstance(adapted, GradientAdapted)
    return adapted


def everything(adapted: GradientAdapted) -> dict[str, object]:
    """All that is saved, flattened to compare."""
    flat: dict[str, object] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{prefix}.{key}", part)
        else:
            flat[prefix] = value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)

    add("", dict(adapted.state_dict()))
    return flat


def assert_same_state(left: dict[str, object], right: dict[str, object]) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        other = right[key]
        assert value.equal(other) if isinstance(value, Tensor) else value == other, key


def moved(adapted: GradientAdapted) -> bool:
    pairs = zip(adapted.trained.values(), adapted.source.buffers(), strict=True)
    return any(not parameter.equal(source) for parameter, source in pairs)


# What each method computes.


@METHODS
@OPTIMIZERS
def test_without_learning_rate_it_is_tbn(method, optimizer):
    model = filled(TinyNet())
    adapted, tbn = learning(method, model, lr=0, optimizer=optimizer), findtta.adapt(model, "tbn")
    for batch in stream(3):
        torch.testing.assert_close(adapted(batch), tbn(batch), atol=1e-5, rtol=1e-5)
    assert not moved(adapted)


@METHODS
def test_it_learns_the_affine_parameters_and_nothing_else(method):
    adapted = learning(method)
    before = {name: tensor.clone() for name, tensor in adapted.model.state_dict().items()}
    for batch in stream(2):
        adapted(batch)
    trained = {name.replace("norm.", "") for name in adapted.trained}
    for name, tensor in adapted.model.state_dict().items():
        if name.replace("norm.", "") not in trained:
            assert tensor.equal(before[name]), name
    assert moved(adapted)
    assert len(trained) == 8  # weight and bias of three BatchNorm2d layers and one BatchNorm1d layer


def test_eata_with_the_margins_of_the_paper_is_nearly_tbn_on_ten_classes():
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = nn.Sequential(features, nn.Linear(16, 10)).eval()
    adapted, tbn = findtta.adapt(model, "eata"), findtta.adapt(model, "tbn")
    selected = []
    for batch in stream(4, count=32):
        torch.testing.assert_close(adapted(batch), tbn(batch), atol=1e-3, rtol=0)
        selected.append(int(adapted.selected.sum()))
    assert selected == [32, 0, 0, 0]


def test_eata_averages_the_selected_predictions_only():
    adapted = learning("eata", entropy_margin=1.2)
    average = None
    for batch in stream(4):
        probabilities = adapted(batch).softmax(1)
        chosen = probabilities[adapted.selected]
        if len(chosen):
            average = chosen.mean(0) if average is None else 0.9 * average + 0.1 * chosen.mean(0)
    torch.testing.assert_close(adapted.average_prediction, average)


def test_eata_with_a_fisher_table_stays_nearer_to_the_source():
    batches = stream(6)

    def distance(weight: float) -> float:
        adapted = learning("eata", lr=1e-3, momentum=0, fisher_weight=weight)
        adapted.set_fisher({name: torch.ones_like(parameter) for name, parameter in adapted.trained.items()})
        for batch in batches:
            adapted(batch)
        pairs = zip(adapted.trained.values(), adapted.source.buffers(), strict=True)
        return sum(float((parameter - source).detach().square().sum()) for parameter, source in pairs)

    assert distance(100.0) < 0.9 * distance(0.0)


def test_the_fisher_table_is_the_mean_squared_gradient_at_the_source():
    model = filled(TinyNet())
    adapted = learning("eata", model)
    adapted(images())  # what was learned must not matter, nor be lost
    before = everything(adapted)
    batches = stream(3)
    with torch.inference_mode():
        table = estimate_fisher(adapted, batches)
    assert_same_state(everything(adapted), before)
    reference = copy.deepcopy(model).train()
    expected = torch.zeros_like(reference.bn1.weight)
    for batch in batches:
        logits = reference(batch)
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        expected += torch.autograd.grad(loss, reference.bn1.weight)[0] ** 2
    torch.testing.assert_close(table["bn1.weight"], expected / 3)
    adapted.set_fisher(table)
    with pytest.raises(OptionError, match=r"differs at bn1\.weight"):
        adapted.set_fisher({name: values for name, values in table.items() if name != "bn1.weight"})
    with pytest.raises(InputError, match="at least one batch"):
        estimate_fisher(adapted, [])


def test_sar_recovers_when_the_loss_is_low():
    adapted = learning("sar", recovery_threshold=10)
    adapted(images())
    assert adapted.recoveries == 1
    assert adapted.average_loss is None
    assert not adapted.optimizer.state
    assert not moved(adapted)
    sticky = learning("sar", recovery_threshold=10, sticky_recovery=True)
    sticky(images())
    assert sticky.average_loss is not None
    assert sticky.optimizer.state
    assert not moved(sticky)


def test_sar_climbs_by_rho_over_all_parameters_at_once():
    adapted = learning("sar", recovery_threshold=0)
    seen = []
    adapted.stem[1].register_forward_pre_hook(
        lambda *_: seen.append(torch.cat([p.detach().flatten() for p in adapted.trained.values()]))
    )
    adapted(images())
    assert len(seen) == 2
    assert float((seen[1] - seen[0]).norm()) == pytest.approx(0.05, rel=1e-4)


def test_sar_steps_with_the_momentum_when_asked():
    quiet, published = (
        learning("sar", momentum_on_empty=choice, recovery_threshold=0) for choice in (False, True)
    )
    for adapted in (quiet, published):
        adapted(images())
    before = [p.detach().clone() for p in quiet.trained.values()]
    for adapted in (quiet, published):
        object.__setattr__(adapted.options, "entropy_margin", -1.0)
        adapted(images(seed=1))
    assert all(p.equal(b) for p, b in zip(quiet.trained.values(), before, strict=True))
    assert not all(p.equal(b) for p, b in zip(published.trained.values(), before, strict=True))


def test_shuffled_patches_come_from_where_the_permutation_says():
    picture = torch.arange(2 * 3 * 8 * 12.0).view(2, 3, 8, 12)
    permutations = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    shuffled = shuffle_patches(picture, permutations, 4)
    for sample in range(2):
        for place in range(16):
            row, column = divmod(place, 4)
            from_row, from_column = divmod(int(permutations[sample, place]), 4)
            here = shuffled[sample, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            there = picture[sample, :, 2 * from_row : 2 * from_row + 2, 3 * from_column : 3 * from_column + 3]
            assert here.equal(there)
    identity = torch.arange(16).expand(2, 16)
    assert shuffle_patches(picture, identity, 4).equal(picture)
    assert shuffle_patches(picture[:, :, :7, :11], identity, 4).shape == (2, 3, 7, 11)


def test_deyo_draws_are_its_own():
    torch.manual_seed(0)
    first = learning("deyo", seed=3).draw_permutations(5)
    torch.manual_seed(1)
    assert learning("deyo", seed=3).draw_permutations(5).equal(first)
    assert not learning("deyo", seed=4).draw_permutations(5).equal(first)
    assert first.sort(1).values.equal(torch.arange(16).expand(5, 16))


@pytest.mark.parametrize("shuffled", ["reliable", "batch"])
def test_deyo_measures_lost_probability_with_the_statistics_of_what_it_shuffles(shuffled):
    batch = images(16)
    adapted = learning("deyo", seed=3, lr=0.0, entropy_threshold=1.0, shuffled=shuffled)
    adapted(batch)
    reliable = adapted.reliable
    assert 0 < reliable.sum() < 16
    part = batch if shuffled == "batch" else batch[reliable]
    tbn = findtta.adapt(filled(TinyNet()), "tbn")
    permutations = learning("deyo", seed=3).draw_permutations(len(part))
    changed = tbn(shuffle_patches(part, permutations, 4)).softmax(1)
    original = tbn(batch).softmax(1)
    kept = changed[reliable] if shuffled == "batch" else changed
    expected = [
        before.max() - after[before.argmax()] for before, after in zip(original[reliable], kept, strict=True)
    ]
    assert torch.allclose(adapted.plpd, torch.stack(expected), atol=1e-6)


def test_deyo_refuses_what_has_no_patches():
    model = filled(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)))
    with pytest.raises(InputError, match=r"\(batch, channels, height, width\)"):
        learning("deyo", model)(randn(5, 6))
    with pytest.raises(InputError, match="at least 4 pixels"):
        learning("deyo")(images(size=3))


# What they have in common.


@METHODS
def test_the_users_model_is_untouched(method):
    model = filled(TinyNet())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = learning(method, model)
    for batch in stream(2):
        adapted(batch)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@METHODS
def test_unwrapping_gives_the_model_that_was_given(method):
    model = filled(TinyNet())
    model.conv1.weight.requires_grad_(False)
    expected = model(images())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = findtta.adapt(model, method, inplace=True, lr=1e-2, **LEARNING[method])
    adapted(images())
    assert findtta.unwrap(adapted) is model
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert model(images()).equal(expected)
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["conv1.weight"]


@METHODS
@OPTIMIZERS
def test_reset_returns_to_the_source_exactly(method, optimizer):
    adapted = learning(method, optimizer=optimizer)
    start = everything(adapted)
    first = [adapted(batch) for batch in stream(3)]
    adapted.reset()
    assert_same_state(everything(adapted), start)
    assert all(adapted(batch).equal(logits) for batch, logits in zip(stream(3), first, strict=True))


def by_state_dict(adapted: GradientAdapted) -> GradientAdapted:
    file = io.BytesIO()
    torch.save(adapted.state_dict(), file)
    file.seek(0)
    fresh = findtta.adapt(filled(TinyNet(), seed=9), type(adapted), **vars(adapted.options))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def by_pickle(adapted: GradientAdapted) -> GradientAdapted:
    return pickle.loads(pickle.dumps(adapted))


@METHODS
@OPTIMIZERS
@pytest.mark.parametrize("copied", [by_state_dict, by_pickle, copy.deepcopy])
def test_a_saved_run_continues_as_if_never_interrupted(method, optimizer, copied):
    adapted = learning(method, optimizer=optimizer)
    if method == "eata":
        adapted.set_fisher({name: torch.rand(p.shape) for name, p in adapted.trained.items()})
    batches = stream(6)
    for batch in batches[:3]:
        adapted(batch)
    resumed = copied(adapted)
    after = [adapted(batch) for batch in batches[3:]]
    assert all(resumed(batch).equal(logits) for batch, logits in zip(batches[3:], after, strict=True))
    assert_same_state(everything(resumed), everything(adapted))
    adapted.reset()
    resumed.reset()
    assert_same_state(everything(resumed), everything(adapted))


@METHODS
def test_loading_does_not_tie_two_models_together(method):
    adapted, other = learning(method), learning(method)
    adapted(images())
    other.load_state_dict(adapted.state_dict())
    before = everything(other)
    for batch in stream(2):
        adapted(batch)
    assert_same_state(everything(other), before)


@METHODS
@pytest.mark.parametrize("count", [1, 3])
def test_small_and_short_batches(method, count):
    adapted = learning(method)
    for batch in [images(), images(count), images()]:
        logits = adapted(batch)
        assert logits.shape == (len(batch), 4)
        assert logits.isfinite().all()
    assert adapted(images()[:0]).shape == (0, 4)
    assert all(parameter.isfinite().all() for parameter in adapted.trained.values())


@METHODS
def test_one_sample_with_one_position(method):
    model = nn.Sequential(nn.Conv2d(3, 6, 4), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4))
    adapted = learning(method, filled(model))
    for seed in range(3):
        assert adapted(images(1, seed=seed, size=4)).isfinite().all()
    assert all(parameter.isfinite().all() for parameter in adapted.trained.values())


@pytest.mark.parametrize("method", ["tent", "eata", "sar"])
def test_networks_of_vectors(method):
    model = filled(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)))
    adapted = learning(method, model)
    for seed in range(3):
        assert adapted(randn(16, 6, seed=seed)).shape == (16, 4)
    assert moved(adapted)


@pytest.mark.parametrize("method", list(SELECTING_NOTHING))
def test_an_empty_selection_takes_no_step(method):
    adapted = learning(method, **SELECTING_NOTHING[method])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in stream(2):
            adapted(batch)
    assert not moved(adapted)
    assert not adapted.optimizer.state
    assert not adapted.selected.any()


def test_an_empty_second_selection_takes_no_step():
    adapted = learning("deyo", plpd_threshold=2)
    adapted(images())
    assert adapted.reliable.any()
    assert not adapted.selected.any()
    assert not moved(adapted)


@METHODS
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_batch_is_predicted_and_not_learned_from(method, poison):
    adapted = learning(method)
    adapted(images())
    before = everything(adapted)
    batch = images(seed=5)
    batch[2, 0, 0, 0] = poison
    healthy = torch.arange(8) != 2
    expected = copy.deepcopy(adapted).predict(batch[healthy])
    with pytest.warns(SkippedUpdateWarning, match=f"'{method}'.*NaN or Inf"):
        logits = adapted(batch)
    torch.testing.assert_close(logits[healthy], expected)
    after = everything(adapted)
    watching = [key for key in after if key.startswith(".adaptation.guard")]
    for key in watching:
        del before[key], after[key]
    assert_same_state(after, before)
    adapted(images())  # and it goes on


class Moody(TinyNet):
    """Multiplies its logits with the factors it is given, one per call."""

    def __init__(self) -> None:
        super().__init__()
        self.factors: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factors.pop(0) if self.factors else 1.0
        if factor == 0:
            raise RuntimeError("no")
        return super().forward(x) * factor


def test_a_loss_that_is_not_finite_is_not_learned_from():
    adapted = learning("tent", filled(Moody()))
    adapted(images())
    before = everything(adapted)
    adapted.model.factors = [math.inf]
    with pytest.warns(SkippedUpdateWarning, match="its gradient is not finite"):
        adapted(images())
    logits = adapted.logits(images())
    with pytest.warns(SkippedUpdateWarning, match="not finite"):  # a loss of 0 with a gradient of NaN
        adapted.descend((logits - logits.detach()).abs().sqrt().sum())
    after = everything(adapted)
    for key in [key for key in after if key.startswith(".adaptation.guard")]:
        del before[key], after[key]
    assert_same_state(after, before)
    assert all(parameter.grad is None for parameter in adapted.trained.values())


def test_sar_comes_down_again_whatever_happens_on_the_way_up():
    adapted = learning("sar", filled(Moody()))
    for factors in ([1, 1e39], [1, math.nan]):
        adapted.model.factors = factors
        adapted(images())
        assert adapted.reliable.any()
        assert not adapted.selected.any()
        assert not moved(adapted)
    adapted.model.factors = [1, 0]
    with pytest.raises(RuntimeError, match="no"):
        adapted(images())
    assert not moved(adapted)


@METHODS
def test_logits_that_are_not_finite_are_predicted_again(method):
    adapted = learning(method, filled(Moody()))
    adapted(images())
    expected = copy.deepcopy(adapted).predict(images(seed=1))
    parameters = [parameter.detach().clone() for parameter in adapted.trained.values()]
    adapted.model.factors = [math.nan]
    with pytest.warns(SkippedUpdateWarning, match="not finite"):
        assert adapted(images(seed=1)).equal(expected)
    for parameter, before in zip(adapted.trained.values(), parameters, strict=True):
        assert parameter.equal(before)


@METHODS
def test_half_precision(method):
    adapted = learning(method)
    with torch.autocast("cpu", torch.bfloat16):
        for batch in stream(2):
            assert adapted(batch).isfinite().all()
    assert moved(adapted)
    narrow = learning(method, filled(TinyNet(), dtype=torch.bfloat16), lr=1.0)
    for batch in stream(2, dtype=torch.bfloat16):
        assert narrow(batch).dtype == torch.bfloat16
    assert moved(narrow)


@METHODS
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_gradient_mode_makes_no_difference(method, mode):
    expected = learning(method)
    adapted = learning(method)
    for batch in stream(2):
        with mode():
            logits = adapted(batch.clone())
        assert logits.equal(expected(batch))
        assert not logits.requires_grad
        assert not logits.is_inference()
    with mode():
        adapted.reset()
    assert not moved(adapted)


@METHODS
def test_the_input_and_its_gradient_are_left_alone(method):
    batch = images().requires_grad_()
    original = batch.detach().clone()
    learning(method)(batch)
    assert batch.equal(original)
    assert batch.grad is None


@METHODS
@pytest.mark.parametrize("predict", ["before", "after"])
def test_cost_is_what_is_computed(method, predict, monkeypatch):
    adapted = learning(method, predict=predict)
    passes = {"forward": 0, "backward": 0}

    def count(direction: str) -> None:
        passes[direction] += 1

    adapted.model.register_forward_hook(lambda *_: count("forward"))
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: (count("backward"), backward(loss)))
    adapted(images())
    assert adapted.selected is None or adapted.selected.any()
    assert passes == {"forward": adapted.cost.forward, "backward": adapted.cost.backward}
    assert findtta.adapt(TinyNet(), "find").cost == Cost(1, 0)


@METHODS
def test_predicting_after_the_update(method):
    before, after = learning(method, predict="before"), learning(method, predict="after")
    assert not before(images()).allclose(after(images()))
    assert after.options.predict == "after"
    assert_same_state(
        {key: value for key, value in everything(before).items() if not key.startswith(".adaptation.guard")},
        {key: value for key, value in everything(after).items() if not key.startswith(".adaptation.guard")},
    )


@METHODS
def test_it_moves_with_its_optimizer(method):
    adapted, double = learning(method, lr=1e-3), learning(method, lr=1e-3)
    for model in (adapted, double):
        model(images())
    double.double()
    adapted(images(seed=1))
    double(images(seed=1, dtype=torch.float64))
    for left, right in zip(adapted.trained.values(), double.trained.values(), strict=True):
        torch.testing.assert_close(left.double(), right, atol=1e-4, rtol=1e-4)
        assert double.optimizer.state[right]["momentum_buffer"].dtype == torch.float64


# Options.


class Head(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(classes))
        self.net(torch.zeros(2, 3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@METHODS
def test_the_preset_of_the_paper(method):
    # The paper does not have ROID, which has the options of its authors by default.
    options = findtta.adapt(Head(10), method, **({"preset": "paper"} if method == "roid" else {})).options
    assert (options.preset, options.optimizer, options.lr, options.momentum) == ("paper", "sgd", 1e-4, 0.9)
    assert options.weight_decay == 0
    assert options.nesterov == (method != "sar")


def test_presets_after_the_code_of_the_authors_of_find():
    for classes in (10, 100, 1000):
        deyo = findtta.adapt(Head(classes), "deyo").options
        assert (deyo.plpd_threshold, deyo.shuffled) == (0.3, "batch")
    assert findtta.adapt(Head(10), "deyo", preset="official").options.shuffled == "reliable"
    for preset, alpha in (("paper", 0.6), ("official", 0.1)):
        model, batch = Head(10), images()
        preset_model = findtta.adapt(model, "alpha-bn", preset=preset)
        assert preset_model.options.alpha == alpha
        assert preset_model(batch).equal(findtta.adapt(model, "alpha-bn", alpha=alpha)(batch))
        assert findtta.adapt(model, "alpha-bn", preset=preset, alpha=0.0).options.alpha == 0
    assert findtta.adapt(Head(10), "alpha-bn").options.preset == "paper"
    assert "preset official: alpha=0.1" in str(findtta.methods()["alpha-bn"])


@pytest.mark.parametrize(
    ("method", "classes", "expected"),
    [
        ("tent", 10, {"optimizer": "adam", "lr": 1e-3}),
        ("tent", 1000, {"optimizer": "sgd", "lr": 2.5e-4, "nesterov": False}),
        ("eata", 10, {"optimizer": "adam", "entropy_margin": 0.4 * math.log(10), "redundancy_margin": 0.4}),
        ("eata", 100, {"fisher_weight": 1, "entropy_margin": 0.4 * math.log(100), "redundancy_margin": 0.1}),
        ("eata", 1000, {"fisher_weight": 2000, "entropy_margin": 0.4 * math.log(1000), "redundancy_margin": 0.05}),
        ("sar", 10, {"optimizer": "sgd", "lr": 1e-3, "entropy_margin": 0.4 * math.log(10)}),
        ("sar", 200, {"lr": 1e-3, "entropy_margin": 0.4 * math.log(200)}),
        ("sar", 400, {"lr": 2.5e-4, "entropy_margin": 0.4 * math.log(400)}),
        ("deyo", 7, {"optimizer": "adam", "entropy_threshold": 0.5 * math.log(7), "plpd_threshold": 0.2}),
        ("deyo", 1000, {"optimizer": "sgd", "lr": 2.5e-4, "plpd_threshold": 0.3}),
    ],
)
def test_the_authors_presets(method, classes, expected):
    options = findtta.adapt(Head(classes), method, preset="official").options
    assert {name: getattr(options, name) for name in expected} == pytest.approx(expected)
    assert options.num_classes == classes


@METHODS
def test_explicit_options_win_over_presets(method):
    for preset in ("paper", "official"):
        options = findtta.adapt(Head(10), method, preset=preset, lr=0.5, optimizer="adam", momentum=0.5).options
        assert (options.lr, options.optimizer, options.momentum) == (0.5, "adam", 0.5)
    assert findtta.adapt(Head(10), method, momentum=0).options.nesterov is False


@METHODS
def test_the_catalogue_shows_presets_and_cost(method):
    text = str(findtta.methods()[method])
    assert "passes per batch: " in text
    assert "preset paper" in text
    assert "preset official, 1000 classes: optimizer='sgd', lr=0.00025" in text


def test_margins():
    assert findtta.adapt(Head(10), "eata").options.entropy_margin == pytest.approx(0.4 * math.log(1000))
    assert findtta.adapt(Head(10), "eata", margins="dataset").options.redundancy_margin == 0.4
    official = findtta.adapt(Head(10), "eata", preset="official", margins="ttab").options
    assert (official.redundancy_margin, official.lr) == (0.05, 1e-3)
    imagenet = findtta.adapt(Head(10), "deyo", margins="imagenet").options
    assert imagenet.entropy_threshold == pytest.approx(0.5 * math.log(1000))
    assert findtta.adapt(Head(10), "deyo", entropy_margin=0.7).options.entropy_margin == 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1}, "lr must be a number of at least 0"),
        ({"optimizer": "lion"}, "optimizer must be 'sgd' or 'adam'"),
        ({"preset": "mine"}, "preset must be 'paper' or 'official'"),
        ({"predict": "during"}, "predict must be 'before' or 'after'"),
        ({"momentum": 2}, "momentum must be a number from 0 to 1"),
        ({"momentum": 1}, "momentum must be below 1"),
        ({"nesterov": 1}, "nesterov must be True or False"),
        ({"num_classes": 0}, "num_classes must be a whole number"),
        ({"skip_layers": "layer4"}, "skip_layers must be a tuple"),
        ({"momentum": 0, "nesterov": True}, "nesterov needs a momentum"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(OptionError, match=message):
        findtta.adapt(Head(10), "tent", **options)


def test_the_number_of_classes_must_be_known_only_where_it_matters():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for method, options in [("tent", {}), ("sar", {}), ("eata", {}), ("deyo", {"margins": "imagenet"})]:
        assert findtta.adapt(model, method, **options)(images()).shape == (8, 5)
    for method, options in [("tent", {"preset": "official"}), ("deyo", {}), ("eata", {"margins": "dataset"})]:
        with pytest.raises(OptionError, match="num_classes must be given"):
            findtta.adapt(model, method, **options)
    assert findtta.adapt(model, "deyo", num_classes=5)(images()).shape == (8, 5)
    with pytest.raises(OptionError, match=r"is 7, but the model returns 5 logits\. Pass num_classes=5"):
        findtta.adapt(model, "deyo", num_classes=7)(images())


def test_parameters_that_layers_share_are_trained_once():
    model = filled(TinyNet())
    model.bn2.weight = model.bn1.weight
    adapted = learning("tent", model)
    adapted(images())
    assert len(adapted.trained) == 7
    assert adapted.bn1.weight is adapted.bn2.weight


@pytest.mark.parametrize("method", ["sar", "deyo"])
def test_skipped_layers_are_not_trained(method):
    assert not any("bn1" in name for name in learning(method, skip_layers=("bn1", "head")).trained)
    model = filled(TinyNet()).train()
    with pytest.raises(UnsupportedModelError, match=r"no BatchNorm layer .*skip_layers=\(''"):
        findtta.adapt(model, method, inplace=True, skip_layers=("",))
    assert model.training
    assert type(model.bn1) is nn.BatchNorm2d


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(InputError, match="one floating-point tensor"):
        learning("tent")(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(UnsupportedModelError, match=r"logits of shape .*shape \(8, 3, 8, 8\)"):
        findtta.adapt(nn.BatchNorm2d(3), "tent")(images())

    class Detached(TinyNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(UnsupportedModelError, match="without gradient"):
        learning("tent", filled(Detached()))(images())
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match="inference mode"):
        learning("tent")


# The collapse guard.


def test_the_guard_is_silent_on_a_healthy_run():
    adapted = learning("tent", lr=1e-4)
    for batch in stream(30, count=16):
        adapted(batch)
        assert adapted.collapse is None


def test_the_guard_notices_a_collapsing_run():
    adapted = learning("tent", lr=0.5, optimizer="adam")
    for batch in stream(60, count=16):
        adapted(batch)
    collapse = adapted.collapse
    assert collapse is not None
    assert 0 < collapse.batch < 60
    assert "few classes" in collapse.reason or "near zero" in collapse.reason
    adapted.reset()
    assert adapted.collapse is None


def test_the_guard_says_what_and_since_when():
    guard = CollapseGuard()
    spread = 3 * nn.functional.one_hot(torch.arange(64) % 10, 10).float()
    for _ in range(20):
        guard.observe(spread)
    assert guard.verdict() is None
    few = 3 * nn.functional.one_hot(torch.zeros(64, dtype=torch.int64), 10).float()
    verdicts = []
    for _ in range(200):
        guard.observe(few)
        verdicts.append(guard.verdict())
    began = next(index for index, verdict in enumerate(verdicts) if verdict) + 20
    assert verdicts[-1].batch == began
    assert "effectively 1." in verdicts[-1].reason
    assert guard.counts.shape == (10,)  # memory does not grow
    certain = CollapseGuard()
    certain.observe(1000 * spread)
    assert "near zero" in certain.verdict().reason
    assert certain.verdict().batch == 0


def test_the_guard_needs_samples_before_it_speaks():
    guard = CollapseGuard()
    generator = torch.Generator().manual_seed(0)
    for index in range(300):
        guard.observe(torch.randn(1, 1000, generator=generator))
        assert guard.verdict() is None, index


# Other people's networks.


@METHODS
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["resnet10t", "efficientvit_m0"])
def test_networks_of_timm(timm, method, architecture):
    torch.manual_seed(0)
    size = {"resnet10t": 64, "efficientvit_m0": 224}[architecture]
    model = timm.create_model(architecture, num_classes=10).eval()
    adapted = findtta.adapt(
        model,
        method,
        lr=1e-3,
        **{"entropy_margin": 2.5, "plpd_threshold": -1.0, "entropy_threshold": 2.5} if method == "deyo" else {},
    )
    first = adapted(images(4, size=size))
    assert first.shape == (4, 10)
    assert adapted(images(4, seed=1, size=size)).isfinite().all()
    assert moved(adapted)
    assert any("layer4" in name for name in adapted.trained) == (
        method in ("tent", "eata", "roid") and "resnet" in architecture
    )
