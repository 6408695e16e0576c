"""What the README shows runs as it stands."""

import re
from pathlib import Path

import pytest

import findtta

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[number], "README.md", "exec"), names)
    assert "findtta" in names


def test_every_method_is_named():
    assert all(f"`{name}`" in README for name in findtta.methods())


def test_every_folder_of_the_map_exists():
    root = Path(__file__).resolve().parents[1]
    folders = re.findall(r"^\| `([^`]+/)`", README, re.MULTILINE)
    assert len(folders) >= 6
    assert all((root / folder).is_dir() for folder in folders)
