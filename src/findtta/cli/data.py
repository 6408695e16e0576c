"""Fetch published datasets, make corrupted ones, and look at them."""

from __future__ import annotations

import argparse
from pathlib import Path

from findtta.cli.lists import names
from findtta.data.dataset import EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES

#: The clean set that a corrupted one is made from unless another is named.
_CLEAN_OF = {"cifar10-c": "cifar10", "cifar100-c": "cifar100"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``findtta data`` and their arguments."""
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="data_command")
    _add_get(subparsers.add_parser("get", help="fetch a published dataset and check it"))
    _add_make(subparsers.add_parser("make", help="corrupt a clean set and keep the result; a kill only pauses it"))
    _add_show(subparsers.add_parser("show", help="describe a dataset, and draw some images of its domains"))


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand."""
    return int({"get": _get, "make": _make, "show": _show}[arguments.data_command](arguments))


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="cifar10-c, cifar100-c, imagenet-c, cifar10 or cifar100")
    _add_root(parser)
    parser.add_argument(
        "--from-file",
        metavar="FILE",
        nargs="+",
        default=[],
        help="use these archives, downloaded by other means; they are checked all the same",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="of imagenet-c: noise, blur, weather, digital, extra (default: all but extra)",
    )
    _add_quiet(parser)


def _get(arguments: argparse.Namespace) -> int:
    from findtta.data.published import get

    folder = get(
        arguments.name,
        root=arguments.root,
        from_files=arguments.from_file,
        parts=arguments.parts,
        progress=not arguments.quiet,
    )
    print(f"{arguments.name} is in {folder}")
    return 0


def _add_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="what to call the result, such as cifar10-c")
    parser.add_argument(
        "--from",
        dest="clean",
        metavar="CLEAN",
        help="the clean set: a path or a name (default for cifar10-c, cifar100-c: the fetched one)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        dest="out",
        type=Path,
        help="where to (default: NAME-generated among the datasets)",
    )
    _add_root(parser)
    parser.add_argument("--corruptions", nargs="+", metavar="NAME", help="default: the fifteen of the benchmark")
    parser.add_argument("--extra", action="store_true", help=f"also make {', '.join(EXTRA_CORRUPTIONS)}")
    parser.add_argument(
        "--severities", nargs="+", type=int, metavar="N", default=list(SEVERITIES), help="default: 1 to 5"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the corruptions (default: 0)")
    parser.add_argument("--constants", help="strengths of the corruptions (default: by the size of the images)")
    parser.add_argument(
        "--layout", choices=("arrays", "folders"), help="as CIFAR-10-C or as ImageNet-C (default: by size)"
    )
    parser.add_argument(
        "--image-size", type=int, metavar="N", help="scale and cut a folder of images to this side"
    )
    parser.add_argument("--resize", type=int, metavar="N", help="scale the shorter side to this before the cut")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work (default: 1)")
    _add_quiet(parser)


def _make(arguments: argparse.Namespace) -> int:
    from findtta.data.corrupted import generate
    from findtta.data.open import load_as_is
    from findtta.data.published import GENERATED_SUFFIX, data_root
    from findtta.errors import OptionError

    source = arguments.clean or _CLEAN_OF.get(arguments.name)
    if source is None:
        raise OptionError(f"--from must name the clean set that {arguments.name} is made from.")
    sizes = {"image_size": arguments.image_size, "resize": arguments.resize}
    options = {name: value for name, value in sizes.items() if value is not None}
    clean = load_as_is(source, root=arguments.root, **options)
    corruptions = names(arguments.corruptions) or [*MAIN_CORRUPTIONS]
    out = generate(
        arguments.name,
        clean,
        arguments.out or data_root(arguments.root) / f"{arguments.name}{GENERATED_SUFFIX}",
        corruptions=[*corruptions, *(EXTRA_CORRUPTIONS if arguments.extra else ())],
        severities=arguments.severities,
        seed=arguments.seed,
        constants=arguments.constants,
        layout=arguments.layout,
        workers=arguments.workers,
        progress=not arguments.quiet,
    )
    print(f"{arguments.name} (generated) is in {out}")
    return 0


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="shapes, the name of a fetched dataset, or a path")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="draw a sheet of images into this .png")
    _add_root(parser)
    parser.add_argument(
        "--domains", nargs="+", metavar="NAME", help="default: those a stream is made of, and clean"
    )
    parser.add_argument("--severity", type=int, default=5, help="of the domains that have one (default: 5)")
    parser.add_argument("--images", type=int, default=4, help="images per domain (default: 4)")
    parser.add_argument(
        "--image-size", type=int, metavar="N", help="scale and cut a folder of images to this side"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of images (default: 0)")


def _show(arguments: argparse.Namespace) -> int:
    from findtta.data.contact_sheet import contact_sheet
    from findtta.data.open import load
    from findtta.errors import OptionError

    options = {} if arguments.image_size is None else {"image_size": arguments.image_size}
    dataset = load(arguments.source, root=arguments.root, **options)
    height, width = dataset.image_size
    print(
        f"{dataset.name}: {len(dataset)} images of {height}x{width}, {len(dataset.domains)} domains, "
        f"{len(dataset.classes)} classes, drift {'generated' if dataset.generated else 'as it comes'}"
    )
    if arguments.out is None:
        return 0
    sheet = contact_sheet(
        dataset,
        names(arguments.domains),
        severity=arguments.severity,
        images=arguments.images,
        seed=arguments.seed,
    )
    try:
        sheet.save(arguments.out)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--out must be an image file that can be written, but {arguments.out}: {error}."
        ) from error
    print(f"drawn into {arguments.out}")
    return 0


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        help="folder of the datasets (default: $FINDTTA_DATA, or the user's cache)",
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
