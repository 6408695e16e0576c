"""The shape of the package: import layers as docs/architecture.md draws them, and every import declared."""

import ast
import functools
import re
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "findtta"
FILES = sorted(PACKAGE.rglob("*.py"))
PICTURE = re.search(
    r"<!-- layers -->\n```\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL
).group(1)
#: From the highest layer to the lowest; modules of one layer do not import each other.
LAYERS = [line.partition("  ")[0].split() for line in PICTURE.splitlines() if line.strip()]
#: Modules that share their name with another on purpose, because they have the same role.
SAME_ROLE = {"__init__", "base", "settings", "open"}


def part_of(file: Path) -> str:
    """The module or package directly below ``findtta`` that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Absolute names of all modules that a file imports at run time, also inside functions."""
    found = set()
    skipped = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(inner) for inner in ast.walk(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "findtta":
            found |= {f"findtta.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def required(file: Path) -> set[tuple[str, str]]:
    """Module and extra of every call of ``require(module, extra, purpose)`` with literal arguments."""
    return {
        (node.args[0].value, node.args[1].value)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "require"
        and len(node.args) == 3
        and all(isinstance(argument, ast.Constant) for argument in node.args[:2])
    }


def test_imports_only_go_down_the_layers():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    parts = {part_of(file) for file in FILES} - {"__init__"}
    assert set(level) == parts, "docs/architecture.md must show every module and package"
    wrong = set()
    for file in FILES:
        here = part_of(file)
        for name in imports(file):
            there = name.split(".")[1] if name.startswith("findtta.") else here
            # Names that the package root passes on (findtta.__version__, findtta.adapt) are no modules.
            if here != "__init__" and there in level and there != here and level[there] <= level[here]:
                wrong.add(f"{file.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_module_names_are_unique_unless_the_role_is_the_same():
    modules = [file for file in FILES if file.stem not in SAME_ROLE and file.parent.name != "cli"]
    counts = Counter(file.stem for file in modules)
    assert {name for name, count in counts.items() if count > 1} == set()
    assert all(len(file.relative_to(PACKAGE).parts) <= 3 for file in FILES)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distributions(requirements: list[str]) -> set[str]:
    """Names of the distributions in a list of requirements, extras of their own included."""
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


CORE = distributions(PROJECT["dependencies"])
EXTRAS = {
    name: distributions(needs)
    for name, needs in PROJECT["optional-dependencies"].items()
    if name not in ("dev", "docs")
}


#: Read once: it takes a second with all extras installed.
INSTALLED = functools.cache(packages_distributions)


def distribution_of(module: str) -> str:
    top = module.partition(".")[0]
    return INSTALLED().get(top, [top])[0].lower().replace("_", "-")


@pytest.mark.parametrize("part", sorted({part_of(file) for file in FILES}))
def test_every_imported_package_is_declared(part):
    files = [file for file in FILES if part_of(file) == part]
    foreign = {
        name
        for file in files
        for name in imports(file)
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("findtta")
    }
    declared = CORE.union(*EXTRAS.values())
    assert {name for name in foreign if distribution_of(name) not in declared} == set()


def test_every_extra_brings_what_is_required_with_its_name():
    calls = {call for file in FILES for call in required(file)}
    assert len(calls) > 5
    assert {(module, extra) for module, extra in calls if distribution_of(module) not in EXTRAS[extra]} == set()
