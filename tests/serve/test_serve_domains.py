"""Domains that the served method has met: in the metrics, in JSON, and with images only if they are to be kept."""

import base64
import io
import math

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("python_multipart")

from asgi import ask
from PIL import Image
from test_observe import KEY, predict, switch, values, with_frontend

from findtta.data.corruptions import corrupt
from findtta.data.shapes import draw
from findtta.errors import OptionError
from findtta.predictor import Predictions
from findtta.serve import Settings
from findtta.serve.domains_met import EXAMPLES, SIDE, DomainsMet
from findtta.serve.engine import Replica

CLEAN = draw(np.arange(32), seed=7)
NOISY = corrupt(CLEAN, "gaussian_noise", 5, seed=0)
SETTINGS = Settings(method="find-domains", clean_images="none", api_key="secret")


async def get(frontend, path):
    return (await ask(frontend.app, "GET", path, headers=KEY)).json()


def shown(metrics, name):
    return {key[1]: value for key, value in metrics.items() if key[0] == name and not math.isnan(value)}


@pytest.fixture(scope="module")
def served():
    """What a server says after two kinds of images, and after another method has taken over."""
    replica = Replica(SETTINGS)

    async def use(frontend):
        before = await get(frontend, "/v1/domains"), await values(frontend)
        for images in (CLEAN, NOISY, NOISY):
            assert (await predict(frontend, images)).status_code == 200
        said = [await get(frontend, path) for path in ("/v1/domains", "/v1/overview")]
        metrics = await values(frontend)
        assert (await switch(frontend, {"method": "find"})).status_code == 200
        await predict(frontend, CLEAN)
        after = [await get(frontend, path) for path in ("/v1/domains", "/v1/overview")]
        return before, said, metrics, after, await values(frontend)

    return with_frontend(use, SETTINGS, replica), replica


def test_the_domains_of_requests_are_those_of_the_replica(served):
    (_, (domains, overview), _, _, _), replica = served
    met = replica._predictor.adapted.domains()
    assert len(met) >= 2
    assert domains["method"] == "find-domains"
    assert [(row["place"], row["share"], row["drift"]) for row in domains["domains"]] == [
        (domain.place, pytest.approx(domain.share), pytest.approx(domain.drift)) for domain in met
    ]
    assert [row["images"] for row in domains["domains"]] == [round(domain.samples) for domain in met]
    assert sum(row["share"] for row in domains["domains"]) == pytest.approx(1)
    assert all("examples" not in row for row in domains["domains"])
    assert overview["domains"] == domains["domains"]


def test_metrics_have_share_and_drift_by_place(served):
    (_, (domains, _), metrics, _, _), _ = served
    rows = {str(row["place"]): row for row in domains["domains"]}
    assert metrics["findtta_domains",] == len(rows)
    assert shown(metrics, "findtta_domain_share") == {place: row["share"] for place, row in rows.items()}
    assert shown(metrics, "findtta_domain_drift") == {place: row["drift"] for place, row in rows.items()}


def test_before_the_first_request_and_under_other_methods_there_are_none(served):
    (before, _, _, (domains, overview), metrics), _ = served
    assert before[0] == {"method": "find-domains", "domains": []}
    assert not any(key[0].startswith("findtta_domain") for key in before[1])
    assert domains == {"method": "find", "domains": []}
    assert "domains" not in overview
    assert metrics["findtta_domains",] == 0
    assert shown(metrics, "findtta_domain_share") == {}


def test_examples_are_kept_if_asked_for():
    settings = Settings(method="find-domains", clean_images="none", api_key="secret", keep_examples=True)

    async def use(frontend):
        for images in (CLEAN, NOISY):
            await predict(frontend, images)
        return await get(frontend, "/v1/domains"), await get(frontend, "/v1/overview")

    domains, overview = with_frontend(use, settings, Replica(settings))
    examples = [row["examples"] for row in domains["domains"]]
    assert all(1 <= len(kept) <= EXAMPLES for kept in examples)
    for url in (url for kept in examples for url in kept):
        image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
        assert max(image.size) <= SIDE
        assert any(np.array_equal(np.asarray(image), sent) for sent in (*CLEAN, *NOISY))
    assert all("examples" not in row for row in overview["domains"])


def batch(places, domains):
    nothing = np.zeros((len(places), 1))
    met = tuple({"place": place, "samples": samples, "share": 0.5, "drift": 1.0} for place, samples in domains)
    return Predictions(nothing.astype(np.float32), nothing.astype(np.int64), nothing, met, np.array(places))


def test_examples_are_few_small_and_of_the_domain_that_has_the_place_now():
    met = DomainsMet(keep_examples=True)
    images = np.random.default_rng(0).integers(0, 256, (6, 100, 60, 3), np.uint8)
    met.note(images, batch([0, 0, 0, 0, 1, -1], [(0, 4.0), (1, 1.0)]))
    kept = {row["place"]: row["examples"] for row in met.report(examples=True)}
    assert {place: len(urls) for place, urls in kept.items()} == {0: EXAMPLES, 1: 1}
    first = Image.open(io.BytesIO(base64.b64decode(kept[1][0].partition(",")[2])))
    assert first.size == (29, 48)
    met.note(images[:1], batch([0], [(0, 1.0)]))  # another domain has taken the place
    (row,) = met.report(examples=True)
    assert len(row["examples"]) == 1
    assert row["examples"] != kept[0][:1]
    met.forget()
    assert met.report(examples=True) == []


def test_a_batch_may_arrive_while_examples_are_shown(monkeypatch):
    met = DomainsMet(keep_examples=True)
    images = np.zeros((2, 8, 8, 3), np.uint8)
    met.note(images, batch([0, 0], [(0, 2.0)]))

    def meanwhile(image):
        met._examples[0].append(image)
        return "url"

    monkeypatch.setattr("findtta.serve.domains_met.png_url", meanwhile)
    assert met.report(examples=True)[0]["examples"] == ["url", "url"]


def test_examples_are_for_servers_of_this_machine():
    with pytest.raises(OptionError, match="keep_examples is for the executor 'embedded'"):
        Settings(keep_examples=True, executor="ray")
    assert not Settings().keep_examples
