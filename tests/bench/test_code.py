"""A stored result is found again only if the code that made it is the same."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from small import HERE, spec

import findtta
from findtta.algorithms.find import FIND
from findtta.algorithms.find_soft import FINDSoft
from findtta.bench import Planner
from findtta.bench import code as code_module
from findtta.bench.code import code_digest, module_files, package_versions
from findtta.bench.execute import schedule
from findtta.bench.executors import Serial
from findtta.bench.plan import SAME_RUN, changes, run_digest
from findtta.bench.store import Store
from findtta.cli.main import main


def written(folder: Path, **files: str) -> Path:
    """Write modules into a folder, and return the first of them."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder / f"{next(iter(files))}.py"


def digest(folder: Path, **files: str) -> str:
    return code_digest([written(folder, **files)])


def test_only_what_is_executed_counts(tmp_path):
    plain = digest(tmp_path, mine="def f(x):\n    return x + 1\n")
    told = '"""About."""\n# Why.\ndef f(x):\n    """Add."""\n    return (x +\n            1)\n'
    assert digest(tmp_path, mine=told) == plain
    assert digest(tmp_path, mine="def f(x):\n    return x + 2\n") != plain


def test_modules_beside_a_file_count_if_it_imports_them(tmp_path):
    files = {
        "mine": "import helper\nfrom other import g",
        "helper": "import deep",
        "deep": "A = 1",
        "other": "B = 1",
    }
    before = digest(tmp_path, **files)
    assert digest(tmp_path, **files, unused="C = 1") == before
    for name in ("deep", "other"):
        assert digest(tmp_path, **files | {name: "A = 2"}) != before


def test_packages_count_as_far_as_they_import_from_themselves(tmp_path):
    package = tmp_path / "mine"
    (package / "parts").mkdir(parents=True)
    written(package, __init__="", method="from .parts import moments\nfrom mine.parts.means import mean")
    written(package / "parts", __init__="", moments="from ..shared import A", means="def mean(): pass")
    written(package, shared="A = 1")
    before = code_digest([package / "method.py"])
    written(package, shared="A = 2")
    assert code_digest([package / "method.py"]) != (changed := before)
    written(package, shared="A = 1", unused="B = 2")
    assert code_digest([package / "method.py"]) == changed


def test_the_place_of_a_file_does_not_count(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert digest(tmp_path / "a", mine="A = 1") == digest(tmp_path / "b", mine="A = 1")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of this package that may be changed; digests are of it."""
    shutil.copytree(
        code_module.ROOT, tmp_path / "findtta", ignore=shutil.ignore_patterns("shipped", "__pycache__")
    )
    monkeypatch.setattr(code_module, "ROOT", tmp_path / "findtta")
    return tmp_path / "findtta"


@pytest.mark.parametrize(
    ("changed", "find", "soft"),
    [
        ("algorithms/find.py", True, False),
        ("algorithms/find_soft.py", False, True),
        ("algorithms/base.py", True, True),
        ("functional/moments.py", True, True),
        ("layers/adaptive.py", True, True),
        ("algorithms/tent.py", False, False),
        ("tables.py", False, False),
        ("cli/main.py", False, False),
        ("serve/app.py", False, False),
    ],
)
def test_a_method_is_the_code_that_it_runs(copied, changed, find, soft):
    roots = {method: [copied / "algorithms" / f"{method}.py"] for method in ("find", "find_soft")}
    before = {method: code_digest(files) for method, files in roots.items()}
    with (copied / changed).open("a") as file:
        file.write("\nCHANGED = 1\n")
    after = {method: code_digest(files) for method, files in roots.items()}
    assert {name: after[name] != before[name] for name in roots} == {"find": find, "find_soft": soft}


def test_constants_of_corruptions_count_as_code_of_the_data(copied):
    before = code_digest([copied / "data" / "corrupted.py"])
    constants = copied / "data" / "corruptions" / "constants.toml"
    constants.write_text(constants.read_text() + "\n# changed\n")
    assert code_digest([copied / "data" / "corrupted.py"]) != before


def test_files_of_installed_packages_are_known_by_their_version():
    things = [np.linalg.norm, *FIND.__mro__, "small"]
    assert "numpy" in package_versions(["numpy"])
    files = module_files(things)
    assert Path(HERE) in files
    assert all(path.name != "module.py" for path in files), "torch"
    assert package_versions(["numpy"]) == {"numpy": np.__version__}
    assert module_files([FINDSoft]) == {Path(findtta.__file__).parent / "algorithms" / "find_soft.py"}


def test_packages_of_another_environment_are_installed_too(tmp_path, monkeypatch):
    # As with --system-site-packages: their code is not read, which would take minutes for torch.
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "borrowed_package.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(folder)
    importlib.import_module("borrowed_package")
    assert module_files(["borrowed_package"]) == set()
    (tmp_path / "own_module.py").write_text("value = 1\n")
    assert module_files([str(tmp_path / "own_module.py")]) == {tmp_path / "own_module.py"}


def test_a_run_is_computed_again_when_code_has_changed_and_says_why(tmp_path, monkeypatch):
    told = []
    store, planner = Store(tmp_path / "runs"), Planner(told.append)
    (first,) = schedule([spec()], store, planner).run(Serial(planner))
    monkeypatch.setattr("findtta.bench.plan.code_digest", lambda files: "other")
    planned = schedule([spec(), spec(method="source")], store, planner)
    assert len(planned.todo) == 2
    assert told[-1] == "a stored result is not used (find): the code of the method and the model and the data " \
        "and the evaluation has changed"  # fmt: skip
    results = list(planned.run(Serial(planner)))
    assert results[0].digest[:SAME_RUN] == first.digest[:SAME_RUN]
    assert results[0].digest != first.digest
    assert schedule([spec()], store, planner).todo == []


def test_changes_in_words():
    config = Planner().plan(spec()).config
    same = {**config, "code": {**config["code"], "method": "other"}}
    assert changes(config, same) == "the code of the method has changed"
    older = {**same, "versions": {**config["versions"], "torch": "2.6.0"}}
    assert changes(config, older) == f"torch 2.6.0 is now {config['versions']['torch']}"
    assert run_digest(config)[:SAME_RUN] == run_digest(older)[:SAME_RUN]
    assert len({run_digest(each) for each in (config, same, older)}) == 3


def test_bench_again_computes_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["bench", "--methods", "source", "--images", "8", "--domains", "fog", "--batch-sizes", "8"]
    assert main(command) == 0
    assert main(command) == 0
    assert "0 done, 1 skipped" in capsys.readouterr().out
    assert main([*command, "--again"]) == 0
    assert "1 done, 0 skipped" in capsys.readouterr().out


def test_a_model_of_a_file_is_code_of_the_run(tmp_path, monkeypatch):
    file = tmp_path / "own_net.py"

    def planned(text):
        file.write_text(text)
        sys.modules.pop("own_net", None)
        return Planner().plan(spec(model=f"{file}:net")).config["code"]["model"]

    text = Path(HERE).read_text()
    before = planned(text)
    assert planned(text + "\n# a comment\n") == before
    assert planned(text + "\nMORE = 1\n") != before
