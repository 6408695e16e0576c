import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import findtta
import findtta.functional

OPTIONAL = (
    "timm",
    "torchvision",
    "rich",
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pooch",
    "ray",
    "hypothesis",
    "aiohttp",
    "fastapi",
    "onnx",
    "onnxruntime",
    "onnxscript",
)

WITHOUT_EXTRAS = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
import torch
import findtta
from findtta.cli.main import build_parser
build_parser()
nn = torch.nn
features = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
model = nn.Sequential(*features, nn.Flatten(), nn.Linear(4, 3))
for method in findtta.methods():
    print(method, tuple(findtta.adapt(model, method)(torch.ones(2, 3, 5, 5)).shape))
"""


def test_works_without_any_extra():
    run = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "find (2, 3)" in run.stdout


@pytest.mark.parametrize("module", [findtta, findtta.functional], ids=lambda module: module.__name__)
def test_every_exported_name_exists_and_is_documented(module):
    assert sorted(module.__all__) == list(module.__all__)
    assert all(getattr(module, name).__doc__ for name in module.__all__)


@pytest.mark.parametrize(
    "name",
    [
        "functional.partition",
        "options",
        "api",
        "registry",
        "inspection",
        "partitioners.base",
        "data.open",
        "conformance",
    ],
)
def test_examples_in_the_documentation_run(name):
    import_module(f"findtta.{name}")
    # By its name in sys.modules: a function of the same name may hide the module in its package.
    results = doctest.testmod(sys.modules[f"findtta.{name}"])
    assert results.attempted > 0
    assert results.failed == 0


def test_the_package_says_that_it_is_typed():
    assert Path(findtta.__file__).with_name("py.typed").is_file()


def test_importing_changes_no_global_state_of_torch():
    code = (
        "import torch; before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state();"
        "import findtta; after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state();"
        "print(before[:2] == after[:2] and torch.equal(before[2], after[2]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "True", run.stderr


def test_the_pages_of_the_methods_are_what_the_code_says():
    script = Path(__file__).resolve().parents[1] / "docs" / "make_method_pages.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
