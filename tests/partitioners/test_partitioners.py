"""What every partitioner must do, by name."""

import copy
import dataclasses
import importlib.util
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from findtta.errors import MissingExtraError, OptionError, UnknownNameError
from findtta.functional import count_groups, partition, purity
from findtta.partitioners import make_partitioner, partitioner_names, partitioners
from findtta.partitioners.base import isolate_poisoned, lowest_members
from nets import randn, without

CLUSTER_EXTRA = ("kmeans", "agglomerative", "birch", "dbscan", "hdbscan", "rcc")
HOST = (*CLUSTER_EXTRA, "dsets-dbscan")
NAMES = partitioner_names()
PAGE = Path(__file__).parents[2] / "docs" / "methods" / "find-partitioners.md"

by_name = pytest.mark.parametrize("name", NAMES)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def needs_scikit_learn(request):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name in CLUSTER_EXTRA:
        pytest.importorskip("sklearn")


def groups(labels) -> set[frozenset[int]]:
    labels = [int(label) for label in labels]
    return {frozenset(i for i, other in enumerate(labels) if other == label) for label in labels}


def sizes(labels) -> list[int]:
    return sorted(len(group) for group in groups(labels))


def clusters(count=4, per_cluster=16, channels=256, seed=0):
    """Directions far apart, each with samples scattered evenly around it, of any length."""
    centres = torch.nn.functional.normalize(randn(count, channels, seed=seed, dtype=torch.float64))
    truth = torch.arange(count * per_cluster).remainder(count)
    scatter = 0.05 * randn(len(truth), channels, seed=seed + 1, dtype=torch.float64) / channels**0.5
    return (1 + truth[:, None]) * (centres[truth] + scatter), truth


def assert_valid(labels, features):
    assert labels.dtype == torch.int64
    assert labels.shape == (len(features),)
    assert torch.equal(labels[labels], labels)  # a label is a member of its group
    assert int(count_groups(labels)) == len(labels.unique())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["kmeans", "agglomerative", "birch", "hdbscan", "rcc"])
def test_separate_clusters_are_found(name, seed):
    features, truth = clusters(seed=10 * seed)
    labels = make_partitioner(name, {"clusters": 4} if name == "kmeans" else None)(features)
    assert groups(labels) == groups(truth)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["dbscan", "dsets-dbscan"])
def test_separate_clusters_are_found_but_for_noise(name, seed):
    features, truth = clusters(seed=10 * seed)
    labels = make_partitioner(name, {"noise": "alone"})(features)
    assert purity(labels, truth) == 1
    for kind in range(4):
        assert labels[truth == kind].bincount().max() >= 0.5 * 16
    noise = [next(iter(group)) for group in groups(labels) if len(group) == 1]
    assert sizes(make_partitioner(name)(features)) == sorted(
        [n for n in sizes(labels) if n > 1] + [len(noise)] * bool(noise)
    )


def test_dbscan_at_the_right_radius_finds_all_of_every_cluster():
    pytest.importorskip("sklearn")
    features, truth = clusters()
    assert groups(make_partitioner("dbscan", {"radius": 0.2})(features)) == groups(truth)


def test_first_neighbours_never_join_separate_clusters():
    features, truth = clusters()
    assert purity(make_partitioner("first-neighbor")(features), truth) == 1


CASES = {
    "none": torch.zeros(0, 5),
    "one": randn(1, 5),
    "two": randn(2, 5),
    "three": randn(3, 5),
    "four": randn(4, 5),
    "one channel": randn(9, 1),
    "duplicates": randn(4, 5).repeat(5, 1),
    "scaled copies": randn(1, 5) * torch.arange(1, 12)[:, None],
    "identical": torch.ones(9, 5),
    "zero": torch.zeros(9, 5),
    "some zero": torch.cat([torch.zeros(3, 5), randn(9, 5)]),
    "all poisoned": torch.full((3, 4), torch.nan),
    "one usable": torch.cat([torch.full((2, 4), torch.nan), torch.ones(1, 4)]),
    "half": randn(12, 5).half(),
    "tiny": 1e-30 * randn(12, 5),
    "huge": 1e30 * randn(12, 5),
    "many": randn(200, 7),
}


@by_name
def test_labels_are_valid_and_the_same_again(name):
    partitioner = make_partitioner(name)
    as_in_the_library = make_partitioner(name, partitioners()[name].library_defaults)
    for features in CASES.values():
        before = features.clone()
        labels = partitioner(features)
        assert_valid(labels, features)
        assert torch.equal(make_partitioner(name)(features), labels)
        assert torch.equal(features.nan_to_num(), before.nan_to_num())
        assert_valid(as_in_the_library(features), features)


@by_name
def test_identical_samples_share_a_group(name):
    expected = 9 if name == "instance" else 1
    assert len(groups(make_partitioner(name)(CASES["identical"]))) == expected
    assert len(groups(make_partitioner(name)(CASES["zero"]))) == expected


@pytest.mark.parametrize(("bad", "poison"), [(0, torch.nan), (7, torch.inf), (19, torch.nan)])
@by_name
def test_a_poisoned_sample_is_alone_and_the_others_are_grouped_as_without_it(name, bad, poison):
    features = randn(20, 6, seed=bad)
    features[bad, 2] = poison
    labels = make_partitioner(name)(features)
    assert_valid(labels, features)
    assert (labels == labels[bad]).sum() == 1
    clean = make_partitioner(name)(without(features, bad))
    if name == "random":  # the permutation is that of a larger batch
        assert sizes(without(labels, bad)) == sizes(clean)
    else:
        assert groups(without(labels, bad)) == groups(clean)


@pytest.mark.parametrize("name", HOST)
def test_the_length_of_a_sample_matters_for_the_euclidean_metric_only(name):
    features = randn(24, 6, dtype=torch.float64)
    scaled = features * 4.0 ** torch.arange(24).remainder(3)[:, None]
    cosine, euclidean = make_partitioner(name), make_partitioner(name, {"metric": "euclidean"})
    assert torch.equal(cosine(scaled), cosine(features))
    assert not torch.equal(euclidean(scaled), euclidean(features))


@pytest.mark.parametrize("name", HOST)
def test_features_may_record_gradients_and_be_inference_tensors(name):
    features = randn(12, 6)
    labels = make_partitioner(name)(features)
    assert torch.equal(make_partitioner(name)(features.clone().requires_grad_()), labels)
    with torch.inference_mode():
        assert torch.equal(make_partitioner(name)(features.clone()), labels)


@given(seeds, st.integers(1, 40), st.integers(2, 10), st.integers(0, 2**63 - 1))
def test_random_groups_have_the_sizes_of_the_real_ones(seed, batch, width, draw):
    features = randn(batch, width, seed=seed)
    labels = make_partitioner("random", {"seed": draw})(features)
    assert_valid(labels, features)
    assert sizes(labels) == sizes(partition(features))


def test_random_groups_depend_on_the_seed_and_not_on_similarity():
    features, truth = clusters()
    drawn = [make_partitioner("random", {"seed": seed})(features) for seed in range(20)]
    assert len({tuple(labels.tolist()) for labels in drawn}) == 20
    assert partition(features).unique().numel() < 20
    assert sum(float(purity(labels, truth)) for labels in drawn) / 20 < 0.6
    assert purity(partition(features), truth) == 1


def test_random_groups_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    labels = make_partitioner("random")(randn(30, 4))
    assert len(labels) == 30
    assert torch.equal(torch.get_rng_state(), before)


def test_controls():
    features = randn(6, 3)
    features[0] = torch.nan
    features[4] = torch.nan
    assert make_partitioner("none")(features).tolist() == [0, 1, 1, 1, 4, 1]
    assert make_partitioner("instance")(features).tolist() == [0, 1, 2, 3, 4, 5]


@given(st.lists(st.integers(-3, 6), max_size=30))
def test_groups_are_renamed_by_their_first_member(labels):
    assert lowest_members(torch.tensor(labels, dtype=torch.int64)).tolist() == [labels.index(x) for x in labels]


@given(st.lists(st.tuples(st.integers(-3, 6), st.booleans()), min_size=1, max_size=30))
def test_poisoned_samples_are_taken_out_of_their_groups(samples):
    labels = torch.tensor([label for label, _ in samples])
    features = torch.tensor([[1.0, torch.nan if poisoned else 0.0] for _, poisoned in samples])
    expected = [i if poisoned else samples.index((label, False)) for i, (label, poisoned) in enumerate(samples)]
    assert isolate_poisoned(labels, features).tolist() == expected


@by_name
def test_a_partitioner_is_frozen_and_can_be_copied_and_pickled(name):
    partitioner = make_partitioner(name)
    assert copy.deepcopy(partitioner) == partitioner == pickle.loads(pickle.dumps(partitioner))
    with pytest.raises(dataclasses.FrozenInstanceError):
        partitioner.metric = "other"


@by_name
def test_a_partitioner_says_what_it_is(name):
    kind = partitioners()[name]
    assert kind.name == name
    assert kind.__doc__
    assert kind.exportable is (name in ("first-neighbor", "none", "instance"))
    assert all(field.metadata["meaning"] for field in dataclasses.fields(kind))


@by_name
def test_the_page_names_every_partitioner_with_its_options_and_defaults(name):
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    for field in dataclasses.fields(partitioners()[name]):
        assert f"`{field.name}={field.default!r}`" in rows[0]


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError, match=r"must be one of first-neighbor.*'kmean'.*Did you mean 'kmeans'"):
        make_partitioner("kmean")
    with pytest.raises(UnknownNameError, match=r"'rcc' has no option 'neighbors'\. Did you mean 'neighbours'"):
        make_partitioner("rcc", {"neighbors": 3})
    with pytest.raises(UnknownNameError, match=r"'none' has no option 'seed'\. It has no options"):
        make_partitioner("none", {"seed": 3})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("random", "seed", -1),
        ("kmeans", "clusters", 0),
        ("kmeans", "starts", 1.5),
        ("kmeans", "seed", 2**40),
        ("kmeans", "metric", "manhattan"),
        ("agglomerative", "linkage", "median"),
        ("agglomerative", "reach", -1.0),
        ("agglomerative", "clusters", 0),
        ("birch", "radius", -0.5),
        ("birch", "branching", 1),
        ("birch", "clusters", 0),
        ("dbscan", "radius", "wide"),
        ("dbscan", "min_samples", 0),
        ("dbscan", "noise", "apart"),
        ("hdbscan", "min_size", 1),
        ("hdbscan", "min_samples", 0),
        ("hdbscan", "allow_single", 1),
        ("rcc", "neighbours", 0),
        ("rcc", "threshold", float("nan")),
        ("dsets-dbscan", "min_points", 0),
        ("dsets-dbscan", "tolerance", -1e-4),
    ],
)
def test_values_out_of_range_are_refused(name, option, value):
    with pytest.raises(OptionError, match=f"^{option} must be"):
        make_partitioner(name, {option: value})


@pytest.mark.parametrize("name", CLUSTER_EXTRA)
def test_without_scikit_learn_the_extra_is_named(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"{name}.*\[cluster\]"):
        make_partitioner(name)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CLUSTER_EXTRA)))
def test_the_others_do_without_scikit_learn(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert_valid(make_partitioner(name)(randn(9, 4)), randn(9, 4))
