"""What the README and the documentation show runs as it stands, and links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

import findtta

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
BLOCKS = {
    f"{page.relative_to(ROOT)}-{number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[name], name, "exec"), names)
    assert len(names) > 1


def test_the_readme_has_two_screens():
    assert len(README.read_text().splitlines()) <= 90


def test_every_method_is_named():
    page = (DOCS / "which-method.md").read_text()
    assert {name for name in findtta.methods() if f"`{name}`" not in page} == set()


def test_every_folder_of_the_map_exists():
    folders = re.findall(r"^\| `([^`]+/)`", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert len(folders) >= 6
    assert all((ROOT / folder).is_dir() for folder in folders)


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *PAGES[1:]], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", without_code(page))
    local = [(target, anchor) for target, anchor in links if "://" not in target]
    places = {(page.parent / target if target else page, anchor) for target, anchor in local}
    wrong = {str(place) for place, _ in places if not place.exists()}
    wrong |= {
        f"{place}{anchor}"
        for place, anchor in places
        if place.suffix == ".md" and anchor and place.exists() and anchor[1:] not in anchors(place)
    }
    assert wrong == set()


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_show_what_they_computed_and_no_place_on_a_disk(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells)
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not re.search(r"site-packages|/home/|/tmp/|/work/", json.dumps(outputs))
