"""``load``: from a name or a path to a dataset."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from findtta.data import arrays, cifar, folders
from findtta.data.corrupted import CorruptedDataset
from findtta.data.dataset import CLEAN, DomainDataset, without_first
from findtta.data.published import GENERATED_SUFFIX, PUBLISHED, data_root
from findtta.data.shapes import Shapes
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches, few
from findtta.images import Preprocessing
from findtta.plugins import Kind

SHAPES = "shapes"
DATASET = Kind(
    "dataset",
    {SHAPES: Shapes},
    "a subclass of findtta.data.DomainDataset or a function that returns one",
    lambda found: issubclass(found, DomainDataset) if isinstance(found, type) else callable(found),
)


class Reader(NamedTuple):
    """A layout of datasets on disk: a line about it, whether a path has it, and what reads a path with options."""

    layout: str
    matches: Callable[[Path], bool]
    read: Callable[..., DomainDataset]


#: The first that matches reads; the most particular layouts come first.
READERS = (
    Reader(
        ".npz file with labels and one uint8 array (n, height, width, 3) per domain, or with images and labels, "
        "or with jpeg, offsets and labels; perhaps with classes",
        arrays.is_npz,
        arrays.read_npz,
    ),
    Reader(
        "CIFAR-10 or CIFAR-100 for Python: the tar archive, or the folder of its pickles (test_batch, test, ...)",
        cifar.is_cifar,
        cifar.read_cifar,
    ),
    Reader(
        "folder with <corruption>.npy files of five severity blocks and labels.npy (CIFAR-10-C, CIFAR-100-C)",
        arrays.is_cifar_c,
        arrays.read_cifar_c,
    ),
    Reader(
        "folder corruption/severity/class/image.JPEG (ImageNet-C)",
        folders.is_imagenet_c,
        folders.read_imagenet_c,
    ),
    Reader(
        "folder domain/class/image, or for a clean set test/class/image, train/class/image or class/image",
        folders.is_folder,
        folders.read_folder,
    ),
)
_LAYOUTS = "".join(f"\n  - {reader.layout}" for reader in READERS)


def load(
    source: str | Path,
    *,
    root: str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> DomainDataset:
    """Open a dataset of several domains.

    A clean set (shapes, CIFAR, a folder of images without domains) gets its drift made on the fly: every
    corruption at every severity.

    Args:
        source: ``"shapes"``, which needs no files; the name of a dataset that ``findtta data get`` fetched or
            ``findtta data make`` made, such as ``"cifar10-c"`` or ``"cifar10-c-generated"``; ``"file.py:NAME"``, a
            subclass of ``DomainDataset`` or a function that returns one, which gets the options; or the path of
            a file or folder. A ``Path`` is never taken for a name.
        root: Where fetched datasets are; by default the folder ``findtta data`` uses.
        preprocessing: How image files are brought to size, such as ``findtta.models.preprocessing_of(model)``; the
            option ``image_size`` goes before it. Arrays, and the files of ImageNet-C, are used as they are.
        **options: Options of the dataset; an error lists those that it has:
            ``classes``: names of all classes in the order of the labels, or a file that lists them (one name per
            line, or JSON). By default those that the data have, sorted if they are folders, or numbers. For
            folders of a part of ImageNet's classes, the full list makes labels keep their meaning.
            ``image_size`` and ``resize``: for image files, the side, or (height, width), that all are resized and
            cropped to, and the length that the shorter side is resized to before the crop (by default what just
            covers it). By default files are used as they are, and must be of one size.
            ``split``: ``"test"`` (default) or ``"train"``, for CIFAR, shapes and folders that have both.
            ``count``: the number of images, for shapes.
            ``seed`` and ``constants``: for clean sets, the seed of the corruptions and of the shapes (default: 0),
            and the strengths of the corruptions, ``"cifar"`` or ``"imagenet"`` (by default by image size).
            ``first``: the first row that is used (default: 0); rows before it are left for choosing settings.

    Example:
        >>> load("shapes", count=100).pick(["fog", "snow"]).domains
        ('fog@5', 'snow@5')
    """
    first = options.pop("first", None)
    if first is not None:
        return without_first(load(source, root=root, preprocessing=preprocessing, **options), first)
    drift = {name: options.pop(name) for name in ("seed", "constants") if options.get(name) is not None}
    factory = _factory(source)
    both = {"seed"} & drift.keys() & inspect.signature(factory).parameters.keys() if factory else set()
    options |= {name: drift[name] for name in both}
    dataset = load_as_is(source, root=root, preprocessing=preprocessing, **options)
    if dataset.domains == (CLEAN,):
        return CorruptedDataset(dataset, **drift)
    for name in drift:
        raise OptionError(f"{name} is for drift made on the fly, but {dataset.name} comes with its own domains.")
    return dataset


def load_as_is(
    source: str | Path,
    *,
    root: str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> DomainDataset:
    """Open a dataset like :func:`load`, but leave a clean set clean, with the single domain ``"clean"``."""
    options = {name: value for name, value in options.items() if value is not None}
    factory = _factory(source)
    if factory is None:
        return read(_find(source, data_root(root)), preprocessing, **options)
    try:
        dataset = _make(str(source), factory, options, preprocessing)
    except TypeError as error:
        raise OptionError(f"data_options do not fit {source!r}: {error}.") from error
    if not isinstance(dataset, DomainDataset):
        raise OptionError(
            f"dataset {source!r} must return a findtta.data.DomainDataset, got a {type(dataset).__name__}."
        )
    if missing := [name for name in DomainDataset.__annotations__ if not hasattr(dataset, name)]:
        raise OptionError(f"dataset {source!r} must have {few(missing)}, but a {type(dataset).__name__} has not.")
    return dataset


def read(path: Path, preprocessing: Preprocessing | None = None, **options: Any) -> DomainDataset:
    """Open the dataset at a path, in one of the layouts of ``READERS``, with options as for :func:`load`."""
    for reader in READERS:
        if reader.matches(path):
            what = f"{str(path)!r}, which is a {reader.layout}"
            return _make(what, reader.read, options, preprocessing, path)
    raise InputError(f"source {str(path)!r} is not a dataset of a known layout. Known are:{_LAYOUTS}")


def _factory(source: str | Path) -> Callable[..., DomainDataset] | None:
    """Return what makes a dataset that has a name but no files known here, or None."""
    if not isinstance(source, str) or source in PUBLISHED or not DATASET.knows(source):
        return None
    factory: Callable[..., DomainDataset] = DATASET.load(source)
    return factory


def _make(
    what: str,
    make: Callable[..., DomainDataset],
    options: dict[str, Any],
    preprocessing: Preprocessing | None,
    *path: Path,
) -> DomainDataset:
    """Call what makes a dataset with the options that it has."""
    parameters = [*inspect.signature(make).parameters][len(path) :]
    known = [name for name in parameters if name != "preprocessing"]
    for name in options:
        if name not in known:
            raise OptionError(
                f"{name} is not an option of {what}.{close_matches(name, known)} Its options are "
                f"{', '.join(known)}."
            )
    decoding = {"preprocessing": preprocessing} if "preprocessing" in parameters else {}
    return make(*path, **options, **decoding)


def _find(source: str | Path, root: Path) -> Path:
    if isinstance(source, str):
        if source in PUBLISHED:
            return _find_published(source, root)
        if source.endswith(GENERATED_SUFFIX) and (root / source).is_dir():
            return root / source
    path = Path(source).expanduser()
    if path.exists():
        return path
    if isinstance(source, str) and path.name == source and not path.suffix:
        generated = sorted(folder.name for folder in root.glob(f"*{GENERATED_SUFFIX}") if folder.is_dir())
        names = [SHAPES, *PUBLISHED, *generated]
        raise UnknownNameError(
            f"source must be a path or one of {', '.join(names)}, but {source!r} is neither."
            f"{close_matches(source, names)}"
        )
    raise InputError(f"source {str(source)!r} does not exist. It can be a name, or the path of a:{_LAYOUTS}")


def _find_published(name: str, root: Path) -> Path:
    for folder in (root / name, root / PUBLISHED[name].alias):
        if folder.is_dir():
            return folder
    generated = name + GENERATED_SUFFIX
    instead = f" There is {generated!r}, made by this package." if (root / generated).is_dir() else ""
    raise InputError(
        f"source {name!r} is not in {root}. Fetch it with: findtta data get {name}{instead} "
        "(a dataset elsewhere is opened by its path)"
    )
