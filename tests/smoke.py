"""Install what was built into new environments, and try it there.

python tests/smoke.py dist     each wheel and source archive of the folder

A new environment sees the dependencies of this one, but neither this repository nor its editable installation.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "findtta"
CODE = """
import sys, torch, findtta
assert findtta.__file__.startswith(sys.prefix), f"{findtta.__file__} is not in {sys.prefix}"
adapted = findtta.adapt(findtta.models.load("shapes-resnet26"))
assert adapted(torch.rand(4, 3, 32, 32)).shape == (4, 10)
print(adapted.report())
"""


def run(*command: object) -> None:
    """Run a command outside of the repository, and stop if it fails."""
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*map(str, command)], check=True, cwd=folder, env=environment)


def smoke(archive: Path, folder: Path) -> None:
    """Install an archive into a new environment, and try it."""
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    scripts = Path(sysconfig.get_path("scripts", "venv", paths))
    python = scripts / "python"
    # Lines of a .pth file are added to the path, but .pth files that are found there are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, archive)
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "."], check=True, capture_output=True, text=True, cwd=SOURCE
    )
    missing = [name for name in tracked.stdout.split("\0") if name and not (packages / "findtta" / name).is_file()]
    if missing:
        raise SystemExit(f"{archive.name} must have every file of src/findtta, but lacks {', '.join(missing)}.")
    run(python, "-c", CODE)
    run(python, "-m", "findtta", "methods")
    run(scripts / "findtta", "--version")
    run(scripts / "findtta", "run", "--domains", "fog", "--images", "8", "--batch-size", "8", "--no-store")


def main() -> None:
    """Try every archive of a folder."""
    archives = sorted(path.resolve() for path in Path(sys.argv[1]).iterdir())
    if {"".join(path.suffixes[-2:])[-3:] for path in archives} != {"whl", ".gz"}:
        raise SystemExit(f"{sys.argv[1]} must hold a wheel and a source archive, got {archives}.")
    for archive in archives:
        with tempfile.TemporaryDirectory() as folder:
            smoke(archive, Path(folder).resolve())
    print("all archives work")


if __name__ == "__main__":
    main()
