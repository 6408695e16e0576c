"""``findtta data``: download published datasets, generate corrupted ones, and look at them."""

from __future__ import annotations

import argparse
from pathlib import Path

from findtta.cli.flags import names
from findtta.data.dataset import EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES
from findtta.errors import OptionError

#: The clean set that a corrupted one is generated from unless another is named.
_CLEAN_OF = {"cifar10-c": "cifar10", "cifar100-c": "cifar100"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``findtta data`` and their arguments."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    get = actions.add_parser("get", help="download a published dataset and verify it")
    get.set_defaults(action=_get)
    get.add_argument("name", help="cifar10-c, cifar100-c, imagenet-c, cifar10 or cifar100")
    get.add_argument(
        "--from-file", metavar="FILE", nargs="+", default=[], help="unpack these archives; nothing is downloaded"
    )
    get.add_argument(
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
    make.add_argument(
        "--corruptions", nargs="+", metavar="NAME", help="corruptions (default: the fifteen of the benchmark)"
    )
    make.add_argument("--extra", action="store_true", help=f"also {', '.join(EXTRA_CORRUPTIONS)}")
    make.add_argument(
        "--severities", nargs="+", type=int, metavar="N", default=SEVERITIES, help="severities (default: 1 to 5)"
    )
    make.add_argument("--constants", metavar="NAME", help="strengths: cifar or imagenet (default: by image size)")
    make.add_argument(
        "--layout",
        choices=("arrays", "folders"),
        help="as CIFAR-10-C or as ImageNet-C (default: by image size)",
    )
    make.add_argument("--resize", type=int, metavar="N", help="length of the shorter side before the centre crop")
    make.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")

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

    for action, seed in ((make, "corruptions"), (show, "choice of images")):
        action.add_argument(
            "--image-size", type=int, metavar="N", help="resize and crop image files to this side (default: no)"
        )
        action.add_argument("--seed", type=int, default=0, metavar="N", help=f"seed of the {seed} (default: 0)")
    for action in (get, make, show):
        action.add_argument(
            "--root",
            metavar="DIR",
            type=Path,
            help="folder of datasets (default: $FINDTTA_DATA or the cache)",
        )
    for action in (get, make):
        action.add_argument("--quiet", action="store_true", help="show no progress bars")


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    return int(arguments.action(arguments))


def _get(arguments: argparse.Namespace) -> int:
    from findtta.data.published import get

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
    from findtta.data.corrupted import generate
    from findtta.data.open import load_as_is
    from findtta.data.published import GENERATED_SUFFIX, data_root

    source = arguments.clean or _CLEAN_OF.get(arguments.name)
    if source is None:
        raise OptionError(f"--from must name the clean dataset that {arguments.name} is made from.")
    sizes = {"image_size": arguments.image_size, "resize": arguments.resize}
    options = {name: value for name, value in sizes.items() if value is not None}
    folder = generate(
        arguments.name,
        load_as_is(source, root=arguments.root, **options),
        arguments.output or data_root(arguments.root) / f"{arguments.name}{GENERATED_SUFFIX}",
        corruptions=[
            *(names(arguments.corruptions) or MAIN_CORRUPTIONS),
            *(EXTRA_CORRUPTIONS if arguments.extra else ()),
        ],
        severities=arguments.severities,
        seed=arguments.seed,
        constants=arguments.constants,
        layout=arguments.layout,
        workers=arguments.workers,
        progress=not arguments.quiet,
    )
    print(f"{arguments.name} (generated) is in {folder}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from findtta.data.contact_sheet import contact_sheet
    from findtta.data.open import load

    options = {} if arguments.image_size is None else {"image_size": arguments.image_size}
    dataset = load(arguments.source, root=arguments.root, **options)
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
