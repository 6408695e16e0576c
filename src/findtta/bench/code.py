"""The code that decides a result, as digests that change with it.

What counts is a module and, as far as they belong to the same package or folder or to this one, the modules that
it imports, one after the other. Comments, docstrings and layout do not count, nor do parts of this package that
only check, show or store. Code of other installed packages is known by its version.
"""

import ast
import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import findtta

ROOT = Path(findtta.__file__).parent
#: The parts of this package that compute; a stream is known by its digest.
_COMPUTING = (
    "algorithms", "collapse", "compiled", "data", "functional", "images", "layers", "models", "partitioners",
)  # fmt: skip
_INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
#: Packages of another environment, which this one may use as well, are in folders of these names.
_INSTALLED_BELOW = {"site-packages", "dist-packages"}
_LENGTH = 12  # of a digest


def module_files(things: Iterable[Any]) -> set[Path]:
    """Return the files of classes, functions, and modules by name or file, without those of installed packages.

    Files of this package count wherever it is installed.
    """
    return {path for _, path in _origins(things) if not _is_installed(path)}


def behind_method(method: type, options: Any) -> list[Any]:
    """Return the classes and functions whose code a method with these options runs."""
    behind: list[Any] = [*method.__mro__, *type(options).__mro__]
    if hasattr(options, "make_partitioner"):
        partitioner = options.make_partitioner()
        behind += [
            *type(partitioner).__mro__,
            *(getattr(partitioner, name, "") for name in ("function", "package")),
        ]
    return behind


def package_versions(things: Iterable[Any]) -> dict[str, str]:
    """Return the versions of the installed packages that classes, functions or modules come from."""
    names = {name.partition(".")[0] for name, path in _origins(things) if _is_installed(path)}
    return {name: version for name in sorted(names) if (version := _version(name))}


def code_digest(files: Iterable[Path]) -> str:
    """Return a digest of the code in files and in what they import."""
    found: dict[Path, str] = {}
    todo = [path.resolve() for path in files]
    while todo:
        path = todo.pop()
        if path not in found:
            stat = path.stat()
            found[path], imported = _read(path, stat.st_mtime_ns, stat.st_size)
            todo += imported
    # Data of this package, such as the strengths of the corruptions, decide as well.
    folders = {path.parent for path in found if path.is_relative_to(ROOT)}
    data = sorted(path for folder in folders for path in folder.glob("*.toml"))
    parts = sorted((_name(path), digest) for path, digest in found.items())
    parts += [(_name(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in data]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_LENGTH]


@functools.lru_cache(maxsize=512)
def _read(path: Path, _modified: int, _size: int) -> tuple[str, tuple[Path, ...]]:
    """Return a digest of a file, which is read again after it has changed, and the files that it imports."""
    tree = ast.parse(path.read_bytes())
    imported = tuple(dict.fromkeys(_imports(tree, path)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imported


def _imports(tree: ast.Module, path: Path) -> Iterator[Path]:
    package = path.parent
    while (package / "__init__.py").is_file():
        package = package.parent
    own = path.relative_to(package).parts[0].removesuffix(".py")
    is_package = path.parent != package
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                folder = path.parents[node.level - 1]
                start = ".".join([*folder.relative_to(package).parts, *filter(None, [start])])
            names = [start, *(f"{start}.{alias.name}" for alias in node.names)]
        for name in names:
            top = name.partition(".")[0]
            # A package imports from itself, a file from its folder, and all of them from here.
            base = ROOT.parent if top == ROOT.name else package if top == own or not is_package else None
            for found in _candidates(base, name) if base and top else ():
                if found.is_relative_to(ROOT) and _part(found) not in _COMPUTING:
                    continue
                yield found


def _candidates(base: Path, name: str) -> Iterator[Path]:
    place = base.joinpath(*name.split("."))
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file():
            yield path


def _origins(things: Iterable[Any]) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the module of each thing that has one."""
    for thing in things:
        name = thing if isinstance(thing, str) else getattr(thing, "__module__", None) or ""
        file = name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None)
        if file and file.endswith(".py"):
            yield name, Path(file).expanduser().resolve()


def _is_installed(path: Path) -> bool:
    if path.is_relative_to(ROOT):
        return False
    return bool(_INSTALLED_BELOW & set(path.parts)) or any(path.is_relative_to(folder) for folder in _INSTALLED)


def _version(package: str) -> str | None:
    names = {"PIL": "pillow", "sklearn": "scikit-learn"}
    try:
        return importlib.metadata.version(names.get(package, package))
    except importlib.metadata.PackageNotFoundError:  # Python's own, or packaged under another name
        return None


def _part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _name(path: Path) -> str:
    """Return a name of a file that does not depend on where it is installed."""
    return path.relative_to(ROOT.parent).as_posix() if path.is_relative_to(ROOT) else path.name
