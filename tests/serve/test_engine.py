"""Trying again when a replica of the model dies, and what the server says about its model."""

import asyncio
import json
import math

import numpy as np
import pytest
import torch
from virtual_time import run as run_virtually

pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")

from findtta.errors import OptionError
from findtta.predictor import Predictions
from findtta.serve import Settings
from findtta.serve.engine import Description, Engine, Replica, ReplicaDied, Unavailable
from findtta.serve.settings import Choice
from findtta.serve.telemetry import Telemetry

IMAGES = np.zeros((1, 2, 2, 3), np.uint8)
PREDICTIONS = Predictions(np.ones((1, 1), np.float32), np.zeros((1, 1), np.int64), np.zeros((1, 1)))


class Dies:
    """A backend whose replicas die a number of times, then predict."""

    ready, failed, place, most_deaths = True, False, "here", math.inf

    def __init__(self, deaths: int, error: type[Exception] = ReplicaDied) -> None:
        self.left, self.error, self.calls = deaths, error, 0

    async def predict(self, images, choice=None):
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self.error("died")
        return PREDICTIONS, f"replica {self.calls}"


def engine_of(backend, telemetry=None):
    return Engine(backend, telemetry or Telemetry((), ()), 10)


@pytest.mark.parametrize("deaths", [0, 1, 5])
def test_deaths_cost_calls_not_predictions(deaths):
    model, telemetry = Dies(deaths), Telemetry((), ())
    asking = engine_of(model, telemetry)
    assert run_virtually(asking.predict(IMAGES)) is PREDICTIONS
    assert model.calls == deaths + 1
    assert asking.healthy
    lines = telemetry.text(queue=3).decode().splitlines()
    assert f"findtta_batch_retries_total {float(deaths)}" in lines
    assert "findtta_replicas_seen_total 1.0" in lines
    assert "findtta_queue_images 3.0" in lines


def test_patience_ends():
    model = Dies(10**6)
    with pytest.raises(Unavailable, match="died"):
        run_virtually(engine_of(model).predict(IMAGES))
    assert 10 <= model.calls <= 20


def test_a_batch_over_which_replicas_die_again_and_again_is_given_up():
    model = Dies(10**6)
    model.most_deaths = 3
    asking = engine_of(model)
    with pytest.raises(Unavailable, match="died"):
        run_virtually(asking.predict(IMAGES))
    assert model.calls == 3
    assert asking.healthy


def test_an_error_of_the_model_is_not_tried_again():
    model = Dies(1, ValueError)
    with pytest.raises(ValueError, match="died"):
        run_virtually(engine_of(model).predict(IMAGES))
    assert model.calls == 1


def test_health_is_bad_while_a_batch_is_tried_again():
    async def scenario():
        asking = engine_of(Dies(3))
        task = asyncio.ensure_future(asking.predict(IMAGES))
        await asyncio.sleep(0.01)
        during = asking.healthy
        await task
        return during, asking.healthy

    assert run_virtually(scenario()) == (False, True)


def test_rays_errors_are_told_apart():
    exceptions = pytest.importorskip("ray.exceptions")
    pytest.importorskip("ray.serve", reason="the 'ray' extra is not installed")
    from findtta.serve.on_ray import is_death

    assert is_death(exceptions.ActorDiedError())
    assert is_death(exceptions.ActorUnavailableError("away", b"0" * 16))
    assert not is_death(exceptions.RayTaskError("predict", "traceback", ValueError("bad")))
    assert not is_death(ValueError("bad"))


@pytest.mark.parametrize("method", ["find", "find-star"])
def test_a_replica_predicts_as_a_predictor_that_has_seen_no_batch(method):
    before = torch.get_num_threads()
    settings = Settings(method=method, threads=1)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    predictions = Replica(settings)(images)
    expected = settings.predictor()(images)
    np.testing.assert_array_equal(predictions.probabilities, expected.probabilities)
    np.testing.assert_array_equal(predictions.groups, expected.groups)
    torch.set_num_threads(before)


def test_the_description_hides_folders_and_tells_classes_of_one_name_apart():
    predictor = Settings().predictor()
    predictor.labels = ("crane", "dog", "crane")
    description = Description.of(Settings(model="some/folder/net.py:make"), predictor)
    assert description.model == "net.py:make"
    assert description.labels == ("crane (0)", "dog", "crane (2)")
    assert Description.of(Settings(model="some/folder/net.safetensors"), predictor).model == "net.safetensors"


def test_the_description_is_plain_values_of_their_own_types():
    described = Description.of(Settings(), Settings().predictor()).to_dict()
    assert described["options"]["alpha"] == 0.8
    assert described["preprocessing"]["mean"] == (0.5, 0.5, 0.5)
    assert described["preprocessing"]["crop"] == 1.0
    json.dumps(described)


def test_a_replica_runs_other_methods_on_the_same_model_and_keeps_a_few():
    replica = Replica(Settings(method="find"))
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    served = replica(images)
    alone = Replica(Settings(method="source"))(images)
    assert np.array_equal(replica(images, Choice("source")).probabilities, alone.probabilities)
    for alpha in np.linspace(0.1, 0.9, 12):
        replica(images, Choice("find", (("alpha", float(alpha)),)))
    assert len(replica._others) == Replica._MOST_CHOICES
    assert np.array_equal(replica(images).probabilities, served.probabilities)
    assert np.array_equal(replica(images, Choice("source")).probabilities, alone.probabilities)
    with pytest.raises(OptionError, match="learns from every batch"):
        replica(images, Choice("tent"))


def test_each_use_of_a_method_has_its_own_state():
    replica = Replica(Settings(method="find-star"))
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    for _ in range(3):
        replica(images)
    twice = [replica(images, Choice("find-star", (), use)).probabilities for use in ("a", "b")]
    assert np.array_equal(*twice)
