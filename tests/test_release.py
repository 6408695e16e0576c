"""What a release is made of agrees with itself: the workflow, the image, the version, the templates."""

import json
import re
import tomllib
from pathlib import Path

import yaml

import findtta
from findtta.cli.main import build_parser
from findtta.cli.serve import settings_of

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def targets(text: str) -> set[str]:
    lines = re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text)
    return {target for line in lines for target in line.split()}


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    local = targets("\n".join(line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line[0] != "#"))
    assert local == {"test-all", "docs", "package"}
    assert targets("\n".join(steps)) == local | {"lint", "types"}  # which test-all begins with
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in local)


def test_the_workflow_tests_every_python_that_is_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"]) == promised
    assert project["requires-python"] == f">={min(promised, key=lambda version: int(version.split('.')[1]))}"


def test_the_version_has_a_section_in_the_changelog():
    release = findtta.__version__.partition(".dev")[0]
    assert re.search(rf"^## {re.escape(release)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_image_starts_a_command_that_exists():
    dockerfile = (ROOT / "Dockerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE).group(1))
    settings = settings_of(build_parser("serve").parse_args([*entry[1:], "--method", "instance"]))
    assert (entry[0], settings.host, settings.method) == ("findtta", "0.0.0.0", "instance")
    assert f"EXPOSE {settings.port}" in dockerfile
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE)
        for name in line.split()
    }
    assert copied == set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert all((ROOT / name).exists() for name in copied)


def test_the_templates_are_forms():
    for name in ("bug", "idea"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        assert {"name", "description", "body"} <= form.keys()
        assert all(field["attributes"].get("label") or field["type"] == "markdown" for field in form["body"])
