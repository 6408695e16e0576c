"""``findtta data``: download published datasets, generate corrupted ones, and look at them."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from findtta.cli.flags import add_flags, given, names
from findtta.cli.output import tell
from findtta.data.contact_sheet import contact_sheet
from findtta.data.corrupted import Generation, generate
from findtta.data.dataset import EXTRA_CORRUPTIONS
from findtta.data.open import load, load_as_is
from findtta.data.published import GENERATED_SUFFIX, PUBLISHED, data_root, get
from findtta.errors import OptionError

#: The clean set that a corrupted one is generated from unless another is named.
_CLEAN_OF = {"cifar10-c": "cifar10", "cifar100-c": "cifar100", "shapes-c": "shapes"}
_ASKS_FROM = 1  # GB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``findtta data`` and their arguments."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    fetch = actions.add_parser("get", help="download a published dataset and verify it")
    fetch.set_defaults(action=_get)
    fetch.add_argument("name", help=", ".join(PUBLISHED))
    fetch.add_argument(
        "--from-file", metavar="FILE", nargs="+", default=[], help="unpack these archives; nothing is downloaded"
    )
    fetch.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="parts of imagenet-c: noise, blur, weather, digital, extra (default: all but extra)",
    )

    make = actions.add_parser("make", help="corrupt a clean dataset and write the result; it can be interrupted")
    make.set_defaults(action=_make)
    make.add_argument("name", help="name of the result, such as cifar10-c")
    make.add_argument(
        "--from",
        dest="clean",
        metavar="NAME|PATH",
        help="the clean dataset (default: cifar10 for cifar10-c, ...)",
    )
    make.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="folder to write to (default: NAME-generated in --root)"
    )
    add_flags(make, Generation)
    make.add_argument("--extra", action="store_true", help=f"also {', '.join(EXTRA_CORRUPTIONS)}")
    make.add_argument("--yes", action="store_true", help=f"do not ask before {_ASKS_FROM} GB or more are written")
    make.add_argument("--resize", type=int, metavar="N", help="length of the shorter side before the centre crop")

    show = actions.add_parser("show", help="describe a dataset, and draw images of its domains")
    show.set_defaults(action=_show)
    show.add_argument("source", help="shapes, the name of a downloaded dataset, or a path")
    show.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="draw images of all domains into this .png"
    )
    show.add_argument(
        "--domains", nargs="+", metavar="NAME", help="domains (default: those that streams are made of, and clean)"
    )
    show.add_argument("--severity", type=int, default=5, metavar="N", help="severity of the domains (default: 5)")
    show.add_argument("--images", type=int, default=4, metavar="N", help="images per domain (default: 4)")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice of images (default: 0)")

    for action in (make, show):
        action.add_argument(
            "--image-size", type=int, metavar="N", help="resize and crop image files to this side (default: no)"
        )
    for action in (fetch, make, show):
        action.add_argument(
            "--root", metavar="DIR", type=Path, help="folder of datasets (default: $FINDTTA_DATA or the cache)"
        )
    for action in (fetch, make):
        action.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    return int(arguments.action(arguments))


def _get(arguments: argparse.Namespace) -> int:
    folder = get(
        arguments.name,
        root=arguments.root,
        from_files=arguments.from_file,
        parts=names(arguments.parts),
        progress=not arguments.quiet,
    )
    print(f"{arguments.name} is in {folder}")
    return 0


def _make(arguments: argparse.Namespace) -> int:
    source = arguments.clean or _CLEAN_OF.get(arguments.name)
    if source is None:
        raise OptionError(f"--from must name the clean dataset that {arguments.name} is made from.")
    how = Generation(**given(arguments, Generation))
    if arguments.extra:
        how = replace(how, corruptions=(*how.corruptions, *EXTRA_CORRUPTIONS))
    clean = load_as_is(source, root=arguments.root, image_size=arguments.image_size, resize=arguments.resize)
    output = arguments.output or data_root(arguments.root) / f"{arguments.name}{GENERATED_SUFFIX}"
    size = how.size(clean) / 1e9
    amount = f"{size:.2f} GB" if size >= 1 else f"{1000 * size:.1f} MB"
    tell(f"{arguments.name}: {how.images(clean):,} images, {amount}, go to {output}", quiet=arguments.quiet)
    if size >= _ASKS_FROM and not arguments.yes and not _agreed():
        print("nothing was written")
        return 1
    folder = generate(arguments.name, clean, output, how, progress=not arguments.quiet)
    print(f"{arguments.name} (generated) is in {folder}")
    return 0


def _agreed() -> bool:
    """Ask whether to go on, or raise an error if nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OptionError(
            f"--yes must be given to write {_ASKS_FROM} GB or more without a terminal to ask in. "
            "Fewer --severities or --corruptions write less, and -o names another folder."
        )
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(arguments: argparse.Namespace) -> int:
    dataset = load(arguments.source, root=arguments.root, image_size=arguments.image_size)
    height, width = dataset.image_size
    print(
        f"{dataset.name}: {len(dataset)} images of {height}x{width}, {len(dataset.domains)} domains, "
        f"{len(dataset.classes)} classes, drift {'generated' if dataset.generated else 'from the data'}"
    )
    if arguments.output is None:
        return 0
    sheet = contact_sheet(
        dataset,
        names(arguments.domains),
        severity=arguments.severity,
        images=arguments.images,
        seed=arguments.seed,
    )
    try:
        sheet.save(arguments.output)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--output must be an image file that can be written, but {arguments.output}: {error}."
        ) from error
    print(f"drawn into {arguments.output}")
    return 0
