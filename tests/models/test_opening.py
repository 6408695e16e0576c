"""The one opener: every kind of name, models of one's own, and what a model says about its input."""

import dataclasses

import pytest
import torch

import findtta
from findtta._extras import install_command
from findtta.errors import MissingExtraError, OptionError, UnknownNameError
from findtta.images import Preprocessing
from findtta.models import Classifier, ModelCard, build, load, load_module, preprocessing_of
from findtta.models.open import describe_input
from findtta.models.weights import write_weights

OWN = """
import torch
from torch import nn
from findtta.models import build

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def card():
    return build("resnet20", num_classes=7, normalization="cifar10")

def nothing():
    return 3

instance = plain()
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_models.py").write_text(OWN)
    return str(tmp_path / "own_models.py")


@pytest.fixture
def weights(tmp_path):
    """Weights with a card, of a small model."""
    torch.manual_seed(1)
    model = build("resnet20", num_classes=10, normalization="cifar10")
    path = tmp_path / "net.safetensors"
    write_weights(path, model.net.state_dict(), dataclasses.replace(model.card, trained_on="CIFAR10"))
    return path


def test_every_kind_of_name_opens_a_model(own, weights):
    batch = torch.rand(2, 3, 32, 32)
    for name, options, classes in [
        ("shapes-resnet26", {}, 10),
        ("resnet20", {"weights": weights}, 10),
        (str(weights), {}, 10),
        (f"{own}:plain", {"num_classes": 4}, 4),
        (f"{own}:instance", {"fallback_classes": 4}, 4),
        (f"{own}:card", {}, 7),
    ]:
        model = load(name, **options)
        assert isinstance(model, Classifier), name
        assert not model.training
        assert model(batch).shape == (2, classes)
        assert model.card.num_classes == classes


def test_a_file_with_a_card_keeps_what_is_asked_for(weights):
    usual, other = load(str(weights)), load(str(weights), normalization="imagenet")
    assert usual.card.image_size == 32  # what it was trained on says it
    assert (usual.card.mean, other.card.mean) == ((0.4914, 0.4822, 0.4465), (0.485, 0.456, 0.406))
    with pytest.raises(OptionError, match="are of a resnet20, not of a resnet32"):
        load("resnet32", weights=weights)
    with pytest.raises(OptionError, match="have 10, not 9"):
        load(str(weights), num_classes=9)
    state = {"conv1.weight": torch.zeros(1)}
    write_weights(weights, state, ModelCard(arch="resnet20", num_classes=10, mean=(0.0,) * 3, std=(1.0,) * 3))
    with pytest.raises(OptionError, match="do not fit resnet20"):
        load(str(weights))


def test_a_file_without_a_card_needs_its_architecture(tmp_path):
    from safetensors.torch import save_file

    bare = tmp_path / "bare.safetensors"
    save_file(build("resnet20", num_classes=10, normalization="half").net.state_dict(), bare)
    with pytest.raises(OptionError, match="has no card inside: name its architecture"):
        load(str(bare))
    assert load("resnet20", weights=bare, fallback_classes=10, normalization="half").card.num_classes == 10


@pytest.mark.parametrize("classes", [7, 10, 100, 1000])
def test_the_normalization_is_never_guessed(tmp_path, classes):
    torch.save(build("resnet20", num_classes=classes, normalization="none").net.state_dict(), tmp_path / "bare.pt")
    with pytest.raises(OptionError, match=r"normalization must be given \(--normalization\) .*MEAN/STD such as"):
        load("resnet20", weights=tmp_path / "bare.pt", num_classes=classes)
    given = load("resnet20", weights=tmp_path / "bare.pt", num_classes=classes, normalization="0.1,0.2,0.3/1,2,3")
    assert (given.card.mean, given.card.std) == ((0.1, 0.2, 0.3), (1, 2, 3))


@pytest.mark.parametrize("wrong", ["0.5/0.5", "1,1,1/1,1,0", "1,1,1/1,1,a", "1,1,1/1,1,1/1,1,1", "/"])
def test_a_normalization_in_numbers_must_be_three_of_each(wrong):
    with pytest.raises(OptionError, match="three numbers each"):
        build("resnet20", num_classes=3, normalization=wrong)


def test_own_models_get_the_normalization_that_is_asked_for(own):
    batch = torch.rand(2, 3, 8, 8)
    plain, normalized = (
        load(f"{own}:plain", num_classes=4),
        load(f"{own}:plain", num_classes=4, normalization="imagenet"),
    )
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(normalized(batch), plain((batch - mean) / std), atol=1e-6)
    assert torch.equal(plain(batch), plain.net(batch))
    assert load(f"{own}:card", normalization="none").card.mean == (0, 0, 0)
    with pytest.raises(UnknownNameError, match="normalization must be one of"):
        load(f"{own}:card", normalization="imagnet")


def test_own_models_take_weights(own, tmp_path):
    state = {name: tensor + 1 for name, tensor in load_module(f"{own}:plain").state_dict().items()}
    torch.save(state, tmp_path / "own.pt")
    loaded = load(f"{own}:plain", weights=tmp_path / "own.pt", num_classes=4)
    assert torch.equal(loaded.net[0].weight, state["0.weight"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("{own}:missing", {"num_classes": 4}, "has no 'missing'"),
        ("{own}:nothing", {"num_classes": 4}, "must give a torch.nn.Module, but gave a int"),
        ("{own}:plain", {}, "num_classes must be given"),
        ("{own}:plain", {"num_classes": 4, "img_size": 32}, "img_size is for named architectures"),
        ("no.such.module:net", {"num_classes": 4}, "cannot be imported"),
        ("nowhere/file.py:net", {"num_classes": 4}, "cannot be imported"),
        (":net", {"num_classes": 4}, "must look like"),
    ],
)
def test_own_models_that_cannot_be_opened(own, name, options, message):
    with pytest.raises((OptionError, UnknownNameError), match=message):
        load(name.format(own=own), **options)


def test_modules_to_look_at_need_no_weights(own, weights):
    assert isinstance(load_module(f"{own}:instance"), torch.nn.Sequential)
    assert load_module("resnet20").fc.out_features == 1000
    assert isinstance(load_module("shapes-resnet26"), Classifier)
    assert isinstance(load_module(str(weights)), Classifier)


def test_the_preprocessing_of_a_model_is_what_its_card_says():
    model = build("resnet20", num_classes=10, normalization="cifar10")
    assert preprocessing_of(model) == Preprocessing(size=(32, 32), resize=32)
    assert preprocessing_of(model, 64, 0.5, "bicubic") == Preprocessing(
        size=(64, 64), resize=128, interpolation="bicubic"
    )
    model.card = dataclasses.replace(model.card, image_size=160, crop=None)
    assert preprocessing_of(model).resize == 160  # no crop is guessed by the size
    model.card = dataclasses.replace(
        model.card, image_size=None, input_size=48, crop=0.75, interpolation="bicubic"
    )
    assert preprocessing_of(model) == Preprocessing(size=(48, 48), resize=64, interpolation="bicubic")
    for silent in (
        Classifier(model.net, dataclasses.replace(model.card, image_size=None, input_size=None)),
        torch.nn.Flatten(),
    ):
        with pytest.raises(OptionError, match=r"image_size must be given \(--image-size\)"):
            preprocessing_of(silent)
        assert preprocessing_of(silent, 24).size == (24, 24)


def test_the_card_of_a_timm_model_is_what_timm_says(timm):
    from timm.data import resolve_model_data_config

    for name in ("resnet18", "vit_tiny_patch16_384", "mobilenetv3_small_050"):
        model = build(f"timm:{name}", num_classes=5)
        config = resolve_model_data_config(model.net)
        card = model.card
        assert (card.mean, card.std) == (config["mean"], config["std"])
        assert (card.image_size, card.crop) == (config["input_size"][1], config["crop_pct"])
        assert card.interpolation == config["interpolation"]
        size = int(config["input_size"][1] / config["crop_pct"])
        assert preprocessing_of(model).resize == size
    small = build("timm:vit_tiny_patch16_384", num_classes=5, img_size=64)
    assert (small.card.input_size, small.card.image_size) == (64, 64)
    with pytest.raises(OptionError, match="img_size: timm:resnet18 does not take it"):
        build("timm:resnet18", num_classes=5, img_size=64)


def test_a_timm_model_of_ones_own_is_given_what_timm_says(timm, tmp_path):
    (tmp_path / "own_timm.py").write_text(
        "import timm\n\ndef net():\n    return timm.create_model('tf_mobilenetv3_small_075', num_classes=5)\n"
    )
    model = load(f"{tmp_path / 'own_timm.py'}:net", num_classes=5)
    expected = build("timm:tf_mobilenetv3_small_075", num_classes=5)
    assert dataclasses.replace(model.card, arch=expected.card.arch) == expected.card
    assert "timm's configuration of tf_mobilenetv3_small_075" in model.source


def test_the_configuration_of_a_tag_of_timm(timm):
    usual, torchvision = (build(f"timm:resnet18{tag}", num_classes=10) for tag in ("", ".tv_in1k"))
    assert preprocessing_of(usual) == Preprocessing.square(224, 0.95, "bicubic")
    assert preprocessing_of(torchvision) == Preprocessing.square(224, 0.875, "bilinear")
    assert torchvision.source == "timm's configuration of resnet18.tv_in1k"


def described(model: Classifier, **given) -> str:
    preprocessing = preprocessing_of(model, *(given.get(name) for name in ("image_size", "crop", "interpolation")))
    return describe_input(model, preprocessing, preprocessing.size, given)


def test_the_input_is_described_with_what_says_it(own, weights):
    shipped = described(load("shapes-resnet26"))
    assert shipped.startswith(
        "input: 32 x 32 (shorter side resized to 32, bilinear; centre crop), mean 0.5 0.5 0.5"
    )
    assert shipped.endswith("std 0.25 0.25 0.25; from the card in shapes-resnet26.safetensors")
    told = described(load(str(weights), normalization="half"), crop=0.5, normalization="half")
    assert "resized to 64" in told
    assert told.endswith("; given --crop, --normalization; from the card in net.safetensors")
    told = described(load(f"{own}:plain", num_classes=4), image_size=24)
    assert told.endswith("given --image-size; by default no crop, bilinear, no normalization (RGB in [0, 1])")
    as_they_are = describe_input(load("shapes-resnet26"), None, (40, 48), {})
    assert as_they_are.startswith("input: 40 x 48, as the data have them, mean")


def test_timm_weights_by_name(timm, tmp_path):
    model = build("timm:resnet18", num_classes=3)
    torch.save(model.net.state_dict(), tmp_path / "w.pt")
    loaded = load("timm:resnet18", weights=tmp_path / "w.pt", num_classes=3)
    assert loaded.card.image_size == 224
    with pytest.raises(UnknownNameError, match="timm has no model"):
        load("timm:resnet18x", weights=tmp_path / "w.pt", num_classes=3)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("findtta._extras.installed", lambda module: False)
    monkeypatch.setattr("findtta.models.zoo.installed", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"\[timm\]"):
        build("timm:resnet18", num_classes=10)


def test_hints_install_from_where_the_package_comes_from(monkeypatch, tmp_path):
    origin = {"text": None}
    made = type("Distribution", (), {"read_text": lambda self, name: origin["text"]})()
    monkeypatch.setattr("findtta._extras.metadata.distribution", lambda name: made)
    package = tmp_path / "clone" / "src" / "findtta"
    monkeypatch.setattr("findtta._extras.__file__", str(package / "_extras.py"))
    assert install_command("ray") == 'pip install "findtta[ray]"'
    origin["text"] = '{"url": "file:///there", "dir_info": {}}'
    assert install_command("ray") == 'pip install "findtta[ray] @ file:///there"'
    origin["text"] = '{"url": "https://there/findtta", "vcs_info": {"vcs": "git", "commit_id": "1"}}'
    assert install_command("ray") == 'pip install "findtta[ray] @ git+https://there/findtta"'
    package.mkdir(parents=True)
    (tmp_path / "clone" / "pyproject.toml").touch()
    assert install_command("ray") == f'pip install -e "{tmp_path / "clone"}[ray]"'


def test_a_torchvision_that_does_not_fit_is_explained(tmp_path):
    file = tmp_path / "with_torchvision.py"
    file.write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    with pytest.raises(OptionError, match=r"findtta\.models\.import_timm\(\)"):
        load_module(f"{file}:make")
    file.write_text("raise RuntimeError('a mistake of its own')\n")
    with pytest.raises(OptionError, match=r"line 1\): RuntimeError: a mistake of its own\.$"):
        load_module(f"{file}:make")


def test_the_guard_of_timm_is_public(timm):
    assert findtta.models.import_timm() is timm
