import numpy as np
import pytest
import torch
from findtta.inference.predictor import usual_size

import findtta
from findtta.errors import InputError, UnknownNameError
from findtta.models import Classifier, ModelCard, load
from findtta.predictor import Predictions, Predictor
from nets import TinyNet, filled

PICTURES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)


def tiny(**card) -> Classifier:
    known = {"arch": "tiny", "num_classes": 4, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    return Classifier(filled(TinyNet()), ModelCard(**(known | card))).eval()


@pytest.mark.parametrize("method", ["source", "find", "find-star", "tbn", "iabn"])
def test_answers_are_those_of_the_adapted_network(method):
    model = load("shapes-resnet26")
    predictor = Predictor(model, method)
    found = predictor(PICTURES)
    batch = torch.from_numpy(PICTURES).permute(0, 3, 1, 2).float() / 255
    expected = torch.softmax(findtta.adapt(model, method)(batch), 1).numpy()
    assert np.array_equal(found.probabilities, expected)
    assert found.indices.tolist() == expected.argmax(1).tolist()
    assert found.drift.shape == found.groups.shape == (12, len(predictor.layers))
    assert (found.last_groups >= 0).all() == (method in ("find", "find-star"))
    assert np.isfinite(found.sample_drift).all()
    assert predictor.labels[0] == "disc"


def test_options_reach_the_method_and_the_network_is_not_changed():
    model = load("shapes-resnet26")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one = Predictor(model, "find", options={"alpha": 1.0})(PICTURES)
    plain = Predictor(model, "source")(PICTURES)
    assert np.array_equal(one.probabilities, plain.probabilities)
    assert (one.last_groups == -1).all()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(UnknownNameError, match="alfa"):
        Predictor(model, "find", options={"alfa": 1.0})


def test_a_network_stays_on_its_device():
    model = tiny()
    predictor = Predictor(model, "find", device="meta")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert {tensor.device.type for tensor in predictor.adapted.state_dict().values()} == {"meta"}


def test_read_only_pictures_and_none_at_all():
    predictor = Predictor(tiny(), "find", size=32)
    frozen = PICTURES.copy()
    frozen.setflags(write=False)
    assert np.array_equal(predictor(frozen).probabilities, predictor(PICTURES).probabilities)
    nothing = predictor(PICTURES[:0])
    assert nothing.probabilities.shape == (0, 4)
    assert nothing.last_groups.shape == nothing.sample_drift.shape == (0,)


@pytest.mark.parametrize("pictures", [PICTURES[0], PICTURES[:, :16], PICTURES.astype(np.float32)])
def test_pictures_that_were_not_prepared_are_refused(pictures):
    with pytest.raises(InputError, match=r"uint8 of shape \(samples, 32, 32, 3\)"):
        Predictor(tiny(), "source", size=32)(pictures)


def test_size_and_crop_have_usual_values():
    sizes = [
        usual_size(tiny(input_size=48, trained_on="imagenet")),
        usual_size(tiny(trained_on="CIFAR10")),
        usual_size(tiny(num_classes=10)),
        usual_size(tiny(num_classes=1000)),
    ]
    assert sizes == [48, 32, 32, 224]
    assert Predictor(tiny(), "source", size=224).prepare.crop == 0.875
    assert Predictor(tiny(), "source", size=32).prepare.crop == 1
    assert Predictor(tiny(), "source", size=224, crop=1).prepare.crop == 1
    assert Predictor(tiny(), "source").labels == ("0", "1", "2", "3")


def test_summaries_over_layers():
    probabilities = np.zeros((2, 3), np.float32)
    groups = np.array([[0, 1, -1], [0, 1, -1]])
    drift = np.array([[1.0, 3.0, np.nan], [np.nan, np.nan, np.nan]])
    found = Predictions(probabilities, groups, drift)
    assert found.last_groups.tolist() == [1, 1]
    assert found.sample_drift[0] == 2
    assert np.isnan(found.sample_drift[1])
