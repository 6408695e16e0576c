"""What a run is asked to be: one method, one model, one stream of one dataset."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from findtta.images import Interpolation
from findtta.models.card import NORMALIZATION
from findtta.models.open import NAMES as MODEL_NAMES
from findtta.options import Count, Options, Seed, Text, Whole, make_options, option

#: Images per domain unless told otherwise: the stream of the fifteen corruptions then takes about a minute.
IMAGES = 1000
ALL = "all"


def count(text: str) -> int | str:
    """Read a number of images, or the word for all of them."""
    return ALL if text == ALL else int(text)


@dataclass(frozen=True, kw_only=True)
class RunSpec(Options):
    """What a run is asked to be; everything in it can be written as JSON.

    The meaning of each setting is declared with it, and is also its help text on the command line.
    """

    method: Text = option("find", "the method (see 'findtta methods')")
    options: Mapping[str, Any] = option(dict, "an option of the method; may be repeated", flag="option")
    model: Text = option("shapes-resnet26", MODEL_NAMES)
    weights: Text | None = option(None, "weights of an architecture", metavar="FILE")
    normalization: Text | None = option(
        None, f"mean and standard deviation of the input: {NORMALIZATION}", shown="the model's own"
    )
    image_size: Count | None = option(None, "side that image files are brought to", shown="the model's own")
    crop: float | None = option(
        None, "fraction of the shorter side of image files that the centre crop keeps", shown="the model's own"
    )
    interpolation: Interpolation | None = option(None, "how image files are resized", shown="the model's own")
    data: Text = option(
        "shapes", "the dataset: shapes, which are drawn on the fly, a name or a path", metavar="NAME|PATH"
    )
    data_options: Mapping[str, Any] = option(
        dict, "an option of the dataset, such as count=2000; may be repeated", flag="data-option"
    )
    domains: tuple[Text, ...] | None = option(
        None, "domains of the stream, such as fog,snow@3", metavar="NAME,...", shown="those of the scenario"
    )
    severity: tuple[Whole, ...] | Whole | None = option(
        None, "severity of domains that do not name theirs", metavar="N,...", parse=int, shown="the scenario's, 5"
    )
    images: Count | None = option(
        IMAGES, f"maximum number of images per domain, or '{ALL}'", metavar="N", parse=count
    )  # None is all
    stream: Text = option(
        "crossmix", "the scenario and its settings, such as wild:delta=0.01", metavar="NAME[:SETTING=VALUE,...]"
    )
    batch_size: Count = option(64, "samples per batch")
    seed: Seed = option(0, "seed of the stream, and of methods that draw at random")
    reset: Literal["never", "domain"] = option(
        "never",
        "'domain' resets the adapted model whenever whole batches come from a new domain; 'never' is how a "
        "deployed model works",
    )
    device: Text = option("cpu", "device the model runs on, such as cuda:0", metavar="DEVICE")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
            elif name == "images" and value == ALL:
                object.__setattr__(self, name, None)
        super().__post_init__()

    @property
    def label(self) -> str:
        """A short description of the run, for progress bars and messages."""
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        method = f"{self.method}:{options}" if options else self.method
        return f"{method} on {self.stream} of {self.data}, {self.model}, batch {self.batch_size}, seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain values that JSON can represent."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the spec with these settings; the others keep their defaults."""
        return make_options("a run", cls, fields)


def digest_of(value: Mapping[str, Any]) -> str:
    """Return what identifies plain values: the beginning of a digest of them as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


#: The names of all settings of a run.
SETTINGS = tuple(field.name for field in dataclasses.fields(RunSpec))
