"""What the README and the documentation show runs as it stands."""

import re
from pathlib import Path

import pytest

import findtta

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {
    f"{page.name}-{number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[name], name, "exec"), names)
    assert len(names) > 1


def test_every_method_is_named():
    assert all(f"`{name}`" in README for name in findtta.methods())


def test_every_folder_of_the_map_exists():
    page = (ROOT / "docs" / "architecture.md").read_text()
    folders = re.findall(r"^\| `([^`]+/)`", page, re.MULTILINE)
    assert len(folders) >= 6
    assert all((ROOT / folder).is_dir() for folder in folders)
