"""Trying again when a copy of the model dies, and what the server says about its model."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch
from virtual_time import run as run_virtually

from findtta.predictor import Predictions
from findtta.serve import Settings
from findtta.serve import model as serving_model
from findtta.serve.model import BatchAnswer, Description, Model, Persistent, Place, by_row

PICTURES = np.zeros((1, 2, 2, 3), np.uint8)
ANSWER = BatchAnswer(Predictions(np.ones((1, 1), np.float32), np.zeros((1, 1), np.int64), np.zeros((1, 1))), "one")


class Dies:
    """Dies so many times, then answers."""

    def __init__(self, deaths: int, error: type[Exception] = ConnectionError) -> None:
        self.left, self.error, self.calls = deaths, error, 0

    async def __call__(self, pictures):
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self.error("gone")
        return ANSWER


def persistent(call, **changes):
    return Persistent(call, lambda error: isinstance(error, ConnectionError), **{"patience_s": 10, **changes})


@pytest.mark.parametrize("deaths", [0, 1, 5])
def test_deaths_cost_calls_not_answers(deaths):
    model, retries = Dies(deaths), []
    asking = persistent(model, on_retry=lambda: retries.append(asking.healthy))
    assert run_virtually(asking(PICTURES)) is ANSWER
    assert model.calls == deaths + 1
    assert len(retries) == deaths
    assert asking.healthy


def test_patience_ends():
    model = Dies(10**6)
    with pytest.raises(ConnectionError):
        run_virtually(persistent(model, patience_s=10)(PICTURES))
    assert 10 <= model.calls <= 20


def test_a_mistake_is_not_repeated():
    model = Dies(1, ValueError)
    with pytest.raises(ValueError, match="gone"):
        run_virtually(persistent(model)(PICTURES))
    assert model.calls == 1


def test_health_is_bad_while_a_batch_is_tried_again():
    async def scenario():
        asking = persistent(Dies(3))
        task = asyncio.ensure_future(asking(PICTURES))
        await asyncio.sleep(0.01)
        during = asking.healthy
        await task
        return during, asking.healthy

    assert run_virtually(scenario()) == (False, True)


def test_rows_are_numbered_as_they_came():
    async def classify(pictures):
        return dataclasses.replace(ANSWER, replica=str(pictures[:, 0, 0, 0].tolist()))

    pictures = [np.full((2, 2, 3), value, np.uint8) for value in (5, 3)]
    rows = run_virtually(by_row(classify)(pictures))
    assert [row.row for row in rows] == [0, 1]
    assert {row.batch.replica for row in rows} == {"[5, 3]"}


def test_rays_errors_are_told_apart():
    exceptions = pytest.importorskip("ray.exceptions")
    pytest.importorskip("ray.serve", reason="the 'serve' extra is not installed")
    from findtta.serve.server import is_death

    assert is_death(exceptions.ActorDiedError())
    assert is_death(exceptions.ActorUnavailableError("away", b"0" * 16))
    assert not is_death(exceptions.RayTaskError("predict", "traceback", ValueError("bad")))
    assert not is_death(ValueError("bad"))


def test_a_copy_answers_as_the_predictor_does(monkeypatch):
    monkeypatch.setattr(serving_model, "_replica_name", lambda: "here")
    before = torch.get_num_threads()
    copy = Model(Settings(threads=1), Place.here())
    pictures = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    answer = asyncio.run(copy.predict(pictures))
    expected = Settings().predictor()(pictures)
    np.testing.assert_array_equal(answer.predictions.probabilities, expected.probabilities)
    assert answer.groups == expected.last_groups.tolist()
    assert answer.drift == expected.sample_drift.tolist()
    assert answer.replica == "here"
    torch.set_num_threads(before)


def test_a_copy_under_find_star_has_seen_no_batch_yet(monkeypatch):
    monkeypatch.setattr(serving_model, "_replica_name", lambda: "here")
    pictures = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    settings = Settings(method="find-star")
    copy = Model(settings, Place.here())
    answer = asyncio.run(copy.predict(pictures))
    expected = settings.predictor()(pictures)
    np.testing.assert_array_equal(answer.predictions.probabilities, expected.probabilities)


def test_the_description_hides_folders_and_tells_classes_of_one_name_apart():
    predictor = Settings().predictor()
    predictor.labels = ("crane", "dog", "crane")
    description = Description.of(Settings(model="some/folder/net.py:make"), predictor)
    assert description.model == "net.py:make"
    assert description.labels == ("crane (0)", "dog", "crane (2)")
    assert Description.of(Settings(model="some/folder/net.safetensors"), predictor).model == "net.safetensors"
