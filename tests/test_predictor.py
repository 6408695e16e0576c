from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import findtta
from findtta.errors import InputError, OptionError, UnknownNameError
from findtta.images import Preprocessing
from findtta.models import Classifier, ModelCard, load
from findtta.predictor import Predictions, PredictorSettings
from nets import TinyNet, filled

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)


def tiny(**card) -> Classifier:
    known = {"arch": "tiny", "num_classes": 4, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    return Classifier(filled(TinyNet()), ModelCard(**(known | card))).eval()


def predictor_of(model: Classifier, method: str, **settings):
    return PredictorSettings(model=model, method=method, **settings).predictor()


@pytest.mark.parametrize("method", ["source", "find", "find-star", "tbn", "iabn"])
def test_predictions_are_those_of_the_adapted_model(method):
    model = load("shapes-resnet26")
    predictor = predictor_of(model, method)
    found = predictor(IMAGES)
    batch = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
    expected = torch.softmax(findtta.adapt(model, method)(batch), 1).numpy()
    assert np.array_equal(found.probabilities, expected)
    assert found.indices.tolist() == expected.argmax(1).tolist()
    assert found.drift.shape == found.groups.shape == (12, len(predictor.layers))
    assert (found.last_groups >= 0).all() == (method in ("find", "find-star"))
    assert np.isfinite(found.sample_drift).all()
    assert predictor.labels[0] == "disc"


@pytest.mark.parametrize("method", ["source", "find", "find-soft"])
def test_threads_get_the_groups_and_the_drift_of_their_own_images(method):
    predictor = predictor_of(tiny(), method, image_size=32)
    batches = [np.roll(IMAGES, index, 1)[: 3 + index % 9] for index in range(80)]
    alone = [predictor(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(predictor, batches, timeout=120))
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.probabilities, other.probabilities)
        assert np.array_equal(one.groups, other.groups)
        assert np.array_equal(one.drift, other.drift, equal_nan=True)


def test_options_reach_the_method_and_the_model_is_not_changed():
    model = load("shapes-resnet26")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one = predictor_of(model, "find", options={"alpha": 1.0})(IMAGES)
    unadapted = predictor_of(model, "source")(IMAGES)
    assert np.array_equal(one.probabilities, unadapted.probabilities)
    assert (one.last_groups == -1).all()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(UnknownNameError, match="alfa"):
        predictor_of(model, "find", options={"alfa": 1.0})


def test_a_model_stays_on_its_device():
    model, settings = tiny(), PredictorSettings(method="find", image_size=32)
    object.__setattr__(settings, "device", "meta")  # which users cannot give, but every machine has
    predictor = settings.predictor(model)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert {tensor.device.type for tensor in predictor.adapted.state_dict().values()} == {"meta"}


def test_read_only_images_and_none_at_all():
    predictor = predictor_of(tiny(), "find", image_size=32)
    frozen = IMAGES.copy()
    frozen.setflags(write=False)
    assert np.array_equal(predictor(frozen).probabilities, predictor(IMAGES).probabilities)
    nothing = predictor(IMAGES[:0])
    assert nothing.probabilities.shape == (0, 4)
    assert nothing.last_groups.shape == nothing.sample_drift.shape == (0,)


@pytest.mark.parametrize("images", [IMAGES[0], IMAGES[:, :16], IMAGES.astype(np.float32)])
def test_images_that_were_not_preprocessed_are_refused(images):
    with pytest.raises(InputError, match=r"uint8 of shape \(samples, 32, 32, 3\)"):
        predictor_of(tiny(), "source", image_size=32)(images)


def test_preprocessing_is_that_of_the_card_unless_given():
    card = tiny(image_size=48, crop=0.5, interpolation="bicubic")
    assert predictor_of(card, "source").preprocess == Preprocessing.square(48, 0.5, "bicubic")
    given = predictor_of(card, "source", image_size=32, crop=1.0, interpolation="bilinear").preprocess
    assert given == Preprocessing.square(32)
    with pytest.raises(OptionError, match="image_size must be given"):
        predictor_of(tiny(), "source")


def test_classes_without_names_have_their_numbers():
    assert predictor_of(tiny(image_size=32), "source").labels == ("0", "1", "2", "3")


def test_settings_make_the_predictor():
    predictor = predictor_of(tiny(), "tbn", image_size=16)
    assert predictor.adapted.name == "tbn"
    assert predictor.preprocess.size == (16, 16)
    for wrong in ({"device": "toaster"}, {"image_size": 0}, {"num_classes": True}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be"):
            PredictorSettings(**wrong)


def test_summaries_over_layers():
    probabilities = np.zeros((2, 3), np.float32)
    groups = np.array([[0, 1, -1], [0, 1, -1]])
    drift = np.array([[1.0, 3.0, np.nan], [np.nan, np.nan, np.nan]])
    found = Predictions(probabilities, groups, drift)
    assert found.last_groups.tolist() == [1, 1]
    assert found.sample_drift[0] == 2
    assert np.isnan(found.sample_drift[1])
