"""Progress: bars in a terminal, lines in a log, and nothing from what ends soon."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

import findtta
from findtta import _progress
from findtta._progress import progress_bar
from findtta.cli.main import main

SOURCES = Path(findtta.__file__).parent


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(_progress, "EVERY", 0.02)


def printed_soon(capsys, what: str) -> str:
    """What is on standard error once it has a text, at the latest after a minute."""
    text, end = "", time.monotonic() + 60
    while what not in text and time.monotonic() < end:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text


def test_a_log_gets_lines(often, capsys):
    with progress_bar(20, "image", desc="reading") as bar:
        bar.update(5)
        bar.set_postfix_str("slowly")
        text = printed_soon(capsys, "slowly\n")
    assert re.fullmatch(r"reading: image 5/20, 00:\d\d elapsed, 00:\d\d left, slowly", text.splitlines()[-1])
    assert "\r" not in text
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # it has ended


def test_lines_come_while_nothing_moves_and_the_total_is_not_known(often, capsys):
    with progress_bar(None, "step", desc="exporting"):
        text = printed_soon(capsys, "\n")
    assert re.fullmatch(r"exporting: 00:\d\d elapsed", text.splitlines()[0])


def test_short_or_quiet_work_prints_nothing(monkeypatch, capsys):
    with progress_bar(2, "run") as bar:
        bar.update()
    monkeypatch.setattr(_progress, "EVERY", 0.01)
    with progress_bar(2, "run", quiet=True) as bar:
        bar.update()
        bar.set_description("x")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bar(2, "run", mininterval=0) as bar:
        bar.update()
    assert "50%" in capsys.readouterr().err


def test_there_is_one_mechanism():
    users = {str(file.relative_to(SOURCES)) for file in SOURCES.rglob("*.py") if "import tqdm" in file.read_text()}
    assert users == {"_progress.py", "cli/output.py"}  # the latter writes messages above bars


def test_commands_print_lines_without_a_terminal(often, capsys, tmp_path):
    images = np.zeros((200, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "clean.npz", images=images, labels=np.arange(200) % 10)
    make = ["data", "make", "mine-c", "--from", str(tmp_path / "clean.npz"), "-o", str(tmp_path / "made")]
    assert main([*make, "--corruptions", "motion_blur"]) == 0
    assert "motion_blur: image" in capsys.readouterr().err
    run = ["run", "--data", "shapes", "--images", "20", "--no-store"]
    assert main(run) == 0
    assert re.search(r"^batch \d+/5, .* elapsed, .* left, accuracy", capsys.readouterr().err, re.MULTILINE)
