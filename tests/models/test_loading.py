"""Loading: cards, normalisation inside, and errors that say what a file really is."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

import findtta
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.errors import OptionError, UnknownNameError
from findtta.models import (
    NORMALIZATIONS,
    SHIPPED,
    Classifier,
    ModelCard,
    build,
    check_clean_accuracy,
    load,
    weights_digest,
)
from findtta.models.weights import read_weights, write_weights


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build("resnet20", num_classes=10, normalization="cifar10").eval()


@pytest.fixture
def state_file(model, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(model.net.state_dict(), path)
    return path


def test_normalisation_is_inside(model):
    images = torch.rand(3, 3, 32, 32)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in NORMALIZATIONS["cifar10"])
    torch.testing.assert_close(model(images), model.net((images - mean) / std))


def test_a_torch_state_dict_comes_back_bit_for_bit(model, state_file):
    loaded = load("resnet20", weights=state_file, num_classes=10, normalization="cifar10")
    assert not loaded.training
    assert weights_digest(loaded) == weights_digest(model)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize("wrapping", ["state_dict", "model", "net"])
def test_the_wrappings_of_training_scripts_are_taken_off(model, tmp_path, wrapping):
    path = tmp_path / "wrapped.pth"
    torch.save(
        {wrapping: {f"module.{name}": value for name, value in model.net.state_dict().items()}, "epoch": 3}, path
    )
    assert weights_digest(
        load("resnet20", weights=path, num_classes=10, normalization="cifar10")
    ) == weights_digest(model)


def test_half_precision_weights_are_computed_with_in_float32(model, tmp_path):
    path = tmp_path / "half.safetensors"
    save_file(
        {
            name: value.half() if value.is_floating_point() else value
            for name, value in model.net.state_dict().items()
        },
        path,
    )
    assert (
        load("resnet20", weights=path, num_classes=10, normalization="cifar10").net.conv1.weight.dtype
        == torch.float32
    )


def test_a_card_travels_with_the_weights(model, tmp_path):
    card = ModelCard(
        arch="resnet20", num_classes=10, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), classes=tuple("abcdefghij"),
        clean_accuracy=12.5, clean_images=8, trained_on="noise", recipe={"epochs": 3}, image_size=40,
    )  # fmt: skip
    path = tmp_path / "carded.safetensors"
    write_weights(path, model.net.state_dict(), card)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    for loaded in (load("resnet20", weights=path), load(str(path))):
        assert loaded.card == card
        assert loaded.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert load("resnet20", weights=path, normalization="none").card.std == (1.0, 1.0, 1.0)
    with pytest.raises(OptionError, match="are of a resnet20, not of a resnet32"):
        load("resnet32", weights=path)
    with pytest.raises(OptionError, match="have 10, not 100"):
        load("resnet20", weights=path, num_classes=100)


def test_half_storage_keeps_running_statistics_whole(model, tmp_path):
    model.net.bn1.running_var.fill_(1e9)
    path = tmp_path / "half.safetensors"
    write_weights(path, model.net.state_dict(), model.card, half=True)
    state, _ = read_weights(path)
    assert state["bn1.running_var"][0] == 1e9
    assert torch.equal(state["conv1.weight"], model.net.conv1.weight.half().float())


def test_a_wrong_architecture_is_told_in_words(state_file):
    with pytest.raises(OptionError, match=r"do not fit resnet32: 60 tensors are missing \(layer1.3.conv1.weight"):
        load("resnet32", weights=state_file, num_classes=10, normalization="half")
    with pytest.raises(OptionError, match=r"fc.weight is \(10, 64\) where \(100, 64\) is expected"):
        load("resnet20", weights=state_file, num_classes=100, normalization="half")
    with pytest.raises(OptionError, match=r"14 tensors belong to no layer \(layer2\.0\.downsample"):
        load("resnet26", weights=state_file, num_classes=10, normalization="half")


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>Sign in</html>", b"\n\n <HTML><body>404", b"<?xml version='1'?>"]
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_web_page_is_called_a_web_page(tmp_path, page, suffix):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(page)
    with pytest.raises(OptionError, match="HTML page, not weights"):
        load("resnet20", weights=path, num_classes=10, normalization="cifar10")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x00\x01garbage" * 20, "cannot be read as a state dict"),
        (pickle.dumps({"a": 1}), "cannot be read as a state dict|must hold a state dict"),
    ],
)
def test_other_files_are_refused_by_what_they_are(tmp_path, content, message):
    path = tmp_path / "net.pt"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        load("resnet20", weights=path, num_classes=10, normalization="cifar10")


class Hostile:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def test_a_hostile_file_runs_nothing(tmp_path):
    path, mark = tmp_path / "evil.pt", tmp_path / "mark"
    torch.save({"weight": Hostile(mark)}, path)
    with pytest.raises(OptionError, match="never pickled code"):
        load("resnet20", weights=path, num_classes=10, normalization="cifar10")
    assert not mark.exists()


def test_a_whole_model_is_refused(model, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(model.net, path)
    with pytest.raises(OptionError, match=r"save model.state_dict\(\)"):
        load("resnet20", weights=path, num_classes=10, normalization="cifar10")


def test_names_and_missing_arguments(tmp_path, state_file):
    with pytest.raises(UnknownNameError, match=r"Did you mean .*'resnet20'"):
        load("resnet21", weights=state_file)
    with pytest.raises(UnknownNameError, match="shapes-resnet26"):
        load("shapes-resnet2")
    with pytest.raises(OptionError, match="is an architecture; give the weights"):
        load("resnet56")
    with pytest.raises(OptionError, match="num_classes must be given"):
        load("resnet20", weights=state_file)
    with pytest.raises(OptionError, match="does not exist"):
        load("resnet20", weights=tmp_path / "nothing.pt", num_classes=10)
    with pytest.raises(UnknownNameError, match="Did you mean 'cifar10'"):
        build("resnet20", num_classes=10, normalization="cifar-10")
    with pytest.raises(OptionError, match="three numbers each"):
        build("resnet20", num_classes=10, normalization=((0, 0, 0), (1, 1, 0)))
    with pytest.raises(OptionError, match="works at any size"):
        build("resnet20", num_classes=10, img_size=64)
    with pytest.raises(OptionError, match="brings its own"):
        load("shapes-resnet26", weights=state_file)
    with pytest.raises(OptionError, match="num_classes must be"):
        build("resnet20", num_classes=0, normalization="cifar10")


def test_the_digest_tells_weights_apart(model):
    before = weights_digest(model)
    assert weights_digest(model) == before
    with torch.no_grad():
        model.net.bn1.running_mean[0] += 1e-6
    assert weights_digest(model) != before


@pytest.mark.parametrize(
    "name", ["shapes-resnet26", pytest.param("shapes-efficientvit_m0", marks=pytest.mark.slow)]
)
def test_shipped_weights_are_as_good_as_their_card_says(name, request):
    if "vit" in name:
        request.getfixturevalue("timm")
    model = load(name)
    outcome = check_clean_accuracy(model, findtta.data.load("shapes"), images=400)
    assert outcome.passed, str(outcome)
    assert model.card.trained_on == "shapes"
    assert model.card.clean_images >= 10_000
    assert model.card.clean_accuracy > 90


@pytest.mark.parametrize("network", ["resnet26", "resnet50"])
@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_cards_of_shipped_cifar_networks(data, network):
    card = load(f"{data}-{network}").card
    assert (card.trained_on, card.clean_images, card.corrupted_images) == (data, 10_000, 1000)
    assert sorted(card.corrupted_accuracy) == sorted(f"{name}@5" for name in MAIN_CORRUPTIONS)


@pytest.mark.parametrize("network", ["resnet26", "resnet50"])
@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_shipped_cifar_networks_are_as_good_as_their_card_says(data, network, shared):
    images = findtta.data.load(str(shared / "data" / f"{data}_test.npz"))
    outcome = check_clean_accuracy(load(f"{data}-{network}"), images, images=500)
    assert outcome.passed, str(outcome)


def test_a_wrong_normalisation_is_found_by_the_check():
    wrong = load("shapes-resnet26")
    wrong.std.fill_(2.0)
    outcome = check_clean_accuracy(wrong, findtta.data.load("shapes"), images=300)
    assert not outcome.passed
    assert "Check the normalization" in str(outcome)


def test_the_check_leaves_the_model_as_it_was():
    model = load("shapes-resnet26").train()
    before = weights_digest(model)
    check_clean_accuracy(model, findtta.data.load("shapes"), images=50)
    assert model.training
    assert weights_digest(model) == before


def test_a_check_without_a_figure_or_clean_images_says_so(model):
    data = findtta.data.load("shapes")
    with pytest.raises(OptionError, match="expected must be given"):
        check_clean_accuracy(model, data)
    with pytest.raises(OptionError, match="no clean images"):
        check_clean_accuracy(model, data.pick(["fog"]), expected=90)


@pytest.mark.parametrize("card", ["{", '{"arch": "resnet20", "colour": "red"}'])
def test_a_card_that_cannot_be_read_is_an_error_of_the_weights(model, tmp_path, card):
    from safetensors.torch import save_file

    save_file(dict(model.net.state_dict()), tmp_path / "net.safetensors", {"findtta.card": card})
    with pytest.raises(OptionError, match="its card cannot be read"):
        load(str(tmp_path / "net.safetensors"))


def test_shipped_files_are_small():
    from importlib.resources import files

    folder = files("findtta.models") / "shipped"
    sizes = {name: (folder / f"{name}.safetensors").stat().st_size for name in SHIPPED}
    assert sum(sizes.values()) < 17e6, sizes


def test_cards_survive_json():
    card = load("shapes-resnet26").card
    assert ModelCard.from_json(card.to_json()) == card
    assert json.loads(card.to_json())["classes"][0] == "disc"


def test_efficientvit_at_a_small_size(timm):
    model = build("efficientvit_m0", num_classes=10, img_size=64).eval()
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert model.card.input_size == 64


def test_the_paper_s_transformer_has_135_norm_layers(timm):
    with torch.device("meta"):
        net = timm.create_model("efficientvit_m5")
    norms = [module for module in net.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 135
    assert isinstance(build("efficientvit_m0", num_classes=3, img_size=64), Classifier)


def test_timm_models_by_name(timm):
    assert build("timm:resnet18", num_classes=4).eval()(torch.rand(1, 3, 64, 64)).shape == (1, 4)
    with pytest.raises(UnknownNameError, match="timm has no model"):
        build("timm:resnet18x", num_classes=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10_resnet20", "cifar10_resnet56", "cifar100_resnet32"])
def test_the_given_state_dicts_are_as_good_as_published(shared, name):
    dataset, arch = name.split("_")
    published = {"cifar10_resnet20": 92.6, "cifar10_resnet56": 94.37, "cifar100_resnet32": 70.16}[name]
    weights = shared / "data" / "weights" / f"{name}.pt"
    model = load(arch, weights=weights, num_classes=int(dataset[5:]), normalization=dataset)
    data = findtta.data.load(shared / "data" / f"{dataset}_test.npz")
    outcome = check_clean_accuracy(model, data, expected=published, images=300)
    assert outcome.passed, str(outcome)


@pytest.mark.slow
def test_the_caffe_resnet50_classifies_photos(shared, timm):
    model = load("resnet50-caffe", weights=shared / "data" / "weights" / "imagenet_resnet50.pt", num_classes=1000)
    data = findtta.data.load(shared / "data" / "imagenet_val2000_224_q90.npz")
    outcome = check_clean_accuracy(model, data, expected=74.6, images=24)
    assert outcome.passed, str(outcome)


def test_weights_have_the_permissions_of_any_new_file(model, tmp_path):
    write_weights(tmp_path / "w.safetensors", model.net.state_dict(), model.card)
    (tmp_path / "other").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
