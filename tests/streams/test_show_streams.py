"""Streams as pictures, in the terminal and in files."""

import argparse
import io
import sys

import numpy as np
import pytest
from stream_data import LabelsOnly, equal

from findtta.cli import streams as command
from findtta.data import load
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.errors import MissingExtraError, OptionError, UnknownNameError
from findtta.streams import make
from findtta.streams.plot import draw, legend, views


class Whole(LabelsOnly):
    """All a published dataset has, with images that say nothing."""

    def images(self, domain, rows):
        return np.zeros((len(rows), 1, 1, 3), np.uint8)


WHOLE = Whole({"clean": 200} | {f"{kind}@{level}": 128 for kind in MAIN_CORRUPTIONS for level in range(1, 6)})


@pytest.fixture(autouse=True)
def _whole_dataset(monkeypatch):
    monkeypatch.setattr("findtta.data.open.load", lambda source: {"shapes": WHOLE}[source])


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["show", *map(str, arguments)])


@pytest.fixture
def show(capsys):
    def run(*arguments):
        assert command.run(parsed(*arguments)) == 0
        return capsys.readouterr().out

    return run


def test_static_is_a_staircase():
    dataset = LabelsOnly({"a": 8, "long name": 8, "c": 4})
    assert draw(make("static", dataset, batch_size=4), width=40) == "\n".join(
        [
            "        a |██   |",
            "long name |  ██ |",
            "        c |    █|",
            "           5 batches",
        ]
    )


def test_shades_show_the_share_of_a_domain():
    dataset = LabelsOnly({"a": 1, "b": 3, "c": 6, "d": 0, "e": 40})
    lines = draw(make("crossmix", dataset, batch_size=50)).splitlines()
    assert [line[3] for line in lines[:5]] == ["░", "░", "░", " ", "█"]
    halves = draw(make("crossmix", LabelsOnly({"a": 50, "b": 30, "c": 20}), batch_size=100))
    assert [line[3] for line in halves.splitlines()[:3]] == ["▓", "▒", "▒"]
    assert legend() == "share of the samples: ░ up to 12%, ▒ up to 35%, ▓ up to 75%, █ more"


@pytest.mark.parametrize("width", [30, 64, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_long_streams_are_shown_twice(width):
    stream = make("shuffle", equal(2000, 5), batch_size=8)
    lines = draw(stream, width).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= width
    assert all(line.count("|") == 3 for line in lines[:-1])
    whole, zoomed = views(stream, 60, 30)
    assert (whole.edges[0], whole.edges[-1]) == (0, len(stream))
    assert np.diff(zoomed.edges).tolist() == [1] * 30
    assert whole.shares.sum(axis=1) == pytest.approx(np.ones(30))
    counts = stream.composition()
    assert zoomed.shares * 8 == pytest.approx(counts[zoomed.edges[0] : zoomed.edges[-1]])
    assert whole.shares[0] == pytest.approx(counts[: whole.edges[1]].sum(axis=0) / counts[: whole.edges[1]].sum())


def test_terminals_without_blocks_get_ascii(monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as context:
        context.setattr(sys, "stdout", plain)
        command.run(parsed("--stream", "static", "--domains", "fog"))
    plain.flush()
    assert b"|@@|" in plain.buffer.getvalue()
    assert b". up to 12%, : up to 35%, # up to 75%, @ more" in plain.buffer.getvalue()


def test_the_command_shows_the_scenarios_of_the_paper(show):
    output = show()
    for name in ("static:across=False: ", "crossmix: ", "shuffle:variant=paper: ", "random:variant=text: "):
        assert f"\n{name}" in f"\n{output}"
    assert output.count("1,920 samples in 30 batches") == 4
    assert make("crossmix", WHOLE.pick()).digest in output
    assert "share of the samples" in output


def test_the_command_takes_settings_domains_and_sizes(show):
    arguments = ("--domains", "fog", "snow", "--images", 100, "--batch-size", 10, "--seed", 7)
    output = show("--stream", "wild:delta=0.01", "gradual", "mostly-clean:fraction=0.5", *arguments)
    wild = make("wild", WHOLE.pick(["fog", "snow"], limit=100, seed=7), batch_size=10, seed=7, delta=0.01)
    assert wild.digest in output
    assert "fog@1 |" in output
    assert "clean |" in output
    assert output.count("200 samples in 20 batches") == 2
    assert "1,000 samples in 100 batches" in output
    assert "fog@3 |" in show("--stream", "crossmix", "--domains", "fog", "--severity", 3)


def test_the_command_draws_the_streams_of_newer_benchmarks(show, monkeypatch):
    output = show(
        "--stream", "recurring:visits=2", "markov", "potpourri", "clean", "--images", 64, "--batch-size", 16
    )
    assert "recurring:across=False,visits=2: one domain after the other, and all of them again" in output
    assert "potpourri:fraction=0.2: every kind of drift" in output
    assert output.count("960 samples in") == 2  # of fifteen domains
    assert "clean |████|" in output
    assert "64 samples in 4 batches, on average 1.00 domains" in output
    monkeypatch.setattr("findtta.data.open.load", lambda source: load(source, count=20))
    drawn = show("--stream", "pairs", "--batch-size", 16)
    assert "fog+gaussian_noise@3 |" in drawn
    assert "120 samples in 8 batches" in drawn


def test_a_misspelt_scenario_is_refused_before_data_is_loaded(show, monkeypatch):
    monkeypatch.setattr("findtta.data.open.load", None)
    with pytest.raises(UnknownNameError, match="Did you mean 'shuffle'"):
        show("--stream", "shufle")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_pictures_are_drawn(show, tmp_path, suffix, magic):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"streams{suffix}"
    streams = ("static",) if suffix != ".png" else ("shuffle", "gradual", "mostly-clean", "lifelong:rounds=9")
    output = show("--stream", *streams, "--domains", "fog", "snow", "-o", path)
    assert path.read_bytes().startswith(magic)
    assert f"drawn into {path}" in output
    assert "|" not in output


def test_pictures_name_what_they_need(show, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match=r"ending in \.png, \.svg, \.pdf, got 'streams\.jpx'"):
        show("-o", tmp_path / "streams.jpx")
    monkeypatch.setattr("findtta._extras.installed", lambda module: not module.startswith("matplotlib"))
    with pytest.raises(MissingExtraError, match=r'pip install .*\[report\]"'):
        show("-o", tmp_path / "streams.png")


def test_an_unwritable_picture_is_named(show, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        show("--stream", "static", "--domains", "fog", "-o", tmp_path / "file" / "streams.png")


def test_every_domain_has_a_colour_of_its_own():
    pytest.importorskip("matplotlib")
    from findtta.streams.plot import domain_colours

    colours = domain_colours(WHOLE.domains)
    assert set(colours) == set(WHOLE.domains)
    assert len(set(colours.values())) == len(WHOLE.domains)
    assert all(0 <= part <= 1 for colour in colours.values() for part in colour)
    assert sum(colours["fog@1"]) > sum(colours["fog@5"])
    assert len(set(domain_colours(["sketch", "photo", "clean"]).values())) == 3
