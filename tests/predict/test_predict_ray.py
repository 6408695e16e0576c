"""One Ray for all of these tests: starting it takes longer than they do."""

import contextlib
import dataclasses
import functools
import gc
import shutil
import sys
import threading
import warnings
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import photos
import pytest
from photos import files, fill, killed_once

from findtta.errors import OptionError
from findtta.models import load
from findtta.predict import Settings, predict

# Ray has warnings of its own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SMALL = {"batch_size": 8, "block_size": 16}


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    pytest.importorskip("pyarrow")
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[photos.__name__])  # workers do not see the folder of tests
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=40)
        yield ray
        ray.shutdown()
        gc.collect()  # Ray leaves files open: it is told here, not in some later test
    cloudpickle.unregister_pickle_by_value(sys.modules[photos.__name__])


def test_a_cluster_that_is_not_there_is_an_error_that_says_so(tmp_path):
    pytest.importorskip("ray")
    images = fill(tmp_path / "in", 2)
    with pytest.raises(OptionError, match="ray_address: Ray at 'nonsense' cannot be used"):
        predict(images, tmp_path / "out", Settings(model=load("shapes-resnet26"), ray_address="nonsense"))


@contextlib.contextmanager
def served(folder):
    """Serve a folder over HTTP; gives its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_urls_workers_and_their_deaths_change_nothing(ray, tmp_path):
    pytest.importorskip("aiohttp")  # by which fsspec speaks HTTP
    images = fill(tmp_path / "in", 37, broken=(3, 20))
    fill(images / "more", 8)
    marker = tmp_path / "marker"
    dying = Settings(model=killed_once(marker), **SMALL)
    predict(images, tmp_path / "folder", dying)
    with served(images) as url:
        predict(url, tmp_path / "local", dying)
        # The third block is there already, as after a kill.
        shutil.copytree(tmp_path / "local", tmp_path / "two")
        for path in (tmp_path / "two" / "predictions").iterdir():
            if "2" not in path.stem:
                path.unlink()
        assert not marker.exists()
        two = predict(url, tmp_path / "two", dataclasses.replace(dying, workers=2))
    assert marker.read_text() == "killed"
    assert (two.execution.executor, two.execution.workers, two.blocks_before, two.blocks_now, two.skipped) == (
        "ray",
        2,
        1,
        2,
        2,
    )
    assert files(tmp_path / "two") == files(tmp_path / "local")
    assert files(tmp_path / "two" / "predictions") == files(tmp_path / "folder" / "predictions")
    assert ray.is_initialized()  # it was not ours to stop


def test_one_worker_and_what_find_star_has_chosen(ray, tmp_path):
    images = fill(tmp_path / "in", 20)
    settings = Settings(
        model=load("shapes-resnet26"), method="find-star", options={"cold_start": 2, "threshold": 0.5}, **SMALL
    )
    predict(images, tmp_path / "local", settings)
    one = predict(images, tmp_path / "one", dataclasses.replace(settings, workers=1))
    assert one.blocks_now == 2
    assert files(tmp_path / "one") == files(tmp_path / "local")


def test_more_workers_than_there_is_room_for_are_refused(ray, tmp_path):
    images = fill(tmp_path / "in", 2)
    with pytest.raises(OptionError, match="workers must be at most 2, got 7: Ray has 3 CPUs"):
        predict(images, tmp_path / "out", Settings(model=load("shapes-resnet26"), workers=7))
