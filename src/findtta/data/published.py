"""The published datasets: where they are, how to know them, and where they are kept here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from findtta.errors import UnknownNameError, close_matches

ROOT_VARIABLE = "FINDTTA_DATA"
GENERATED_SUFFIX = "-generated"


@dataclass(frozen=True)
class Archive:
    """One file of a published dataset.

    Attributes:
        url: Where it is.
        md5: Its hash, as published.
    """

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return self.url.partition("?")[0].rpartition("/")[2]


@dataclass(frozen=True)
class PublishedSet:
    """A dataset that can be fetched.

    Attributes:
        name: What it is called here.
        archives: Its parts.
        landmark: A file or folder that stands in the folder worth keeping of an extracted archive, for each part.
        default_parts: The parts fetched unless others are asked for.
        alias: The name of the folder its archive extracts to, which people keep.
        classes: Names of the classes, where the data do not have them.
    """

    name: str
    archives: Mapping[str, Archive]
    landmark: Mapping[str, str]
    default_parts: tuple[str, ...]
    alias: str
    classes: tuple[str, ...] = field(default=(), repr=False)


_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def _single(name: str, url: str, md5: str, landmark: str, alias: str, classes: str = "") -> PublishedSet:
    return PublishedSet(
        name, {"all": Archive(url, md5)}, {"all": landmark}, ("all",), alias, tuple(classes.split())
    )


def _imagenet_c() -> PublishedSet:
    hashes = {
        "noise": "e80562d7f6c3f8834afb1ecf27252745",
        "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
        "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
        "digital": "89157860d7b10d5797849337ca2e5c03",
        "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
    }
    landmarks = {
        "noise": "gaussian_noise",
        "blur": "defocus_blur",
        "weather": "fog",
        "digital": "contrast",
        "extra": "speckle_noise",
    }
    where = "https://zenodo.org/record/2235448/files/{}.tar?download=1"
    archives = {part: Archive(where.format(part), md5) for part, md5 in hashes.items()}
    return PublishedSet("imagenet-c", archives, landmarks, ("noise", "blur", "weather", "digital"), "ImageNet-C")


_SETS = (
    _single(
        "cifar10-c",
        "https://zenodo.org/record/2535967/files/CIFAR-10-C.tar?download=1",
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "labels.npy",
        "CIFAR-10-C",
        _CIFAR10_CLASSES,
    ),
    _single(
        "cifar100-c",
        "https://zenodo.org/record/3555552/files/CIFAR-100-C.tar?download=1",
        "11f0ed0f1191edbf9fa23466ae6021d3",
        "labels.npy",
        "CIFAR-100-C",
        _CIFAR100_CLASSES,
    ),
    _imagenet_c(),
    _single(
        "cifar10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "test_batch",
        "cifar-10-batches-py",
    ),
    _single(
        "cifar100",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "meta",
        "cifar-100-python",
    ),
)

PUBLISHED: Mapping[str, PublishedSet] = {published.name: published for published in _SETS}


def published_set(name: str) -> PublishedSet:
    """Return the published dataset of a name."""
    if name not in PUBLISHED:
        raise UnknownNameError(
            f"name must be one of {', '.join(PUBLISHED)}, got {name!r}.{close_matches(name, PUBLISHED)}"
        )
    return PUBLISHED[name]


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder datasets are kept in.

    Args:
        root: The folder, if it is given.

    Returns:
        ``root``; else what the environment variable ``FINDTTA_DATA`` says; else ``findtta`` in the user's
        cache folder.
    """
    chosen = root or os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        cache = "~/Library/Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "findtta"
