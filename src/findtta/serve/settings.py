"""Settings of the prediction server: the model, the method, how batches are formed, and what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from findtta._ray import joins_cluster
from findtta.errors import OptionError
from findtta.options import (
    MODEL_NAMES,
    AtLeastZero,
    Count,
    Fraction,
    Positive,
    option,
    require_device,
    require_int,
)
from findtta.plugins import public_name
from findtta.predictor import PredictorSettings

MEBIBYTE = 2**20
KEY_VARIABLE = "FINDTTA_API_KEY"
SHARE = 0.1
Port = Annotated[int, partial(require_int, low=0, high=65535)]


class Choice(NamedTuple):
    """A method that replicas run beside the served one, on the same model; each use of one keeps its own state."""

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    use: str = ""

    @classmethod
    def of(cls, method: str, options: Mapping[str, Any], use: str = "") -> "Choice":
        """Return the choice of a method with options in any order."""
        return cls(method, tuple(sorted(options.items())), use)


@dataclass(frozen=True, kw_only=True)
class Settings(PredictorSettings):
    """All settings of a server. Sizes in ``mb`` are in MiB, and may be fractions."""

    model: str = option(
        "shapes-resnet26", MODEL_NAMES, metavar="NAME"
    )  # a name only: each replica loads the model
    host: str = option("127.0.0.1", "address to listen on", metavar="ADDRESS")
    port: Port = option(8000, "port to listen on; 0 takes a free one")
    max_batch: Count = option(64, "largest number of images in one batch")
    wait_ms: AtLeastZero = option(
        10.0, "milliseconds that an image waits for others to share its batch", metavar="MS"
    )
    executor: Literal["embedded", "ray"] | None = option(
        None,
        "run the model in processes of this machine, or on Ray Serve",
        shown="ray with --ray-address or --max-replicas, else embedded",
    )
    replicas: Count = option(1, "smallest number of replicas of the model")
    max_replicas: Count | None = option(
        None,
        "largest number of replicas; Ray Serve starts and stops them as the load requires",
        shown="as --replicas",
    )
    threads: Count = option(1, "CPU threads of each replica")
    ray_address: str | None = option(
        None, "address of a Ray cluster that runs the replicas", metavar="ADDRESS", shown="Ray is started here"
    )
    drain_s: AtLeastZero = option(
        0.0, "seconds for which a stopping server still reports it to load balancers", metavar="S"
    )
    max_queue: Count = option(
        1024, "most images that wait or are being predicted; further requests get status 503"
    )
    max_images: Count | None = option(None, "most images in one request", shown="as --max-batch")
    max_body_mb: Positive = option(32.0, "largest body of a request, in MiB", metavar="MB")
    max_json_mb: Positive = option(16.0, "largest JSON body, which costs more to read, in MiB", metavar="MB")
    max_pending_mb: Positive = option(
        512.0, "largest total size of the bodies that are being read, in MiB", metavar="MB"
    )
    timeout_s: Positive = option(60.0, "longest time that a request may take, in seconds", metavar="S")
    shadow: str | None = option(
        None, "method that predicts a share of the batches a second time, to be compared", shown="none"
    )
    shadow_options: Mapping[str, Any] = option(
        dict, "option of the method of --shadow; may be repeated", flag="shadow-option"
    )
    share: Fraction | None = option(None, "share of the batches that --shadow predicts", shown=SHARE)
    clean_images: str | None = option(
        None,
        "clean images that calibrate the drift alert: a folder or the name of a dataset; 'none' turns it off",
        metavar="PATH",
        shown="those of the model's card, if code draws them",
    )
    access_log: str | None = option(
        None, "file that gets a line of JSON for each request; - is stderr", metavar="FILE", shown="no log"
    )
    samples: str | None = option(
        None, "folder with a folder of images per class, for the page at /", metavar="FOLDER", shown="drawn shapes"
    )
    keep_examples: bool = option(
        False, "keep a few small images of each domain in memory, which the page shows (find-domains)"
    )
    api_key: str | None = field(default=None, repr=False)  # that requests must send; None accepts everybody

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.strip()):
            raise OptionError("api_key must be ASCII and not blank; leave it out to accept everybody.")
        self._require_order("replicas", "max_replicas", "it is the smaller of the two")
        self._require_order("max_images", "max_batch", "the images of a request share one batch")
        self._require_order("max_batch", "max_queue", "otherwise no batch could be full")
        for name in ("shadow_options", "share"):
            if self.shadow is None and getattr(self, name) not in (None, {}):
                raise OptionError(f"{name} is for the method that shadow names, but shadow is not given.")
        only = {"ray": ("ray_address", "max_replicas"), "embedded": ("shadow", "clean_images", "keep_examples")}
        for executor, names in only.items():
            for name in names:
                if getattr(self, name) not in (None, "none", False) and self.kind != executor:
                    raise OptionError(f"{name} is for the executor {executor!r}, but executor is {self.kind!r}.")

    @property
    def kind(self) -> str:
        """The executor that is used."""
        return self.executor or ("ray" if self.ray_address or self.max_replicas else "embedded")

    def check_device(self) -> None:
        """Raise ``OptionError`` unless the device can be used here, or may be one of the replicas' cluster."""
        if self.device != "cpu":
            require_device(self.device, elsewhere=self.kind == "ray" and joins_cluster(self.ray_address))

    def _require_order(self, low: str, high: str, reason: str) -> None:
        smaller, larger = getattr(self, low), getattr(self, high)
        if smaller is not None and larger is not None and smaller > larger:
            raise OptionError(f"{low} must be at most {high} ({larger}), got {smaller}: {reason}.")

    def require_servable(self) -> None:
        """Raise ``OptionError`` unless the method can be served; it imports torch, so that a replica calls it."""
        from findtta.registry import load_method

        self.method_options()  # names what is wrong with them
        method = load_method(self.method)
        if method.needs_grad:
            raise OptionError(
                f"method {self.method!r} learns from every batch, so that the images of one client would change "
                "the predictions for all others for good: serve a method that does not learn, such as 'find'."
            )
        if self.compile and method.warm_up_option is not None:
            raise OptionError(
                f"compile must not be given with {self.method!r}, which is compiled after its warm-up: clients "
                "would wait for it. Serve it without, or a method that needs no warm-up, such as 'find'."
            )
        if method.stateful and self.most_replicas > 1:
            raise OptionError(
                f"replicas must be 1 for {self.method!r}, got {self.most_replicas}: each replica would depend on "
                "its own first batches, and predictions on which replica made them."
            )

    @property
    def choice(self) -> Choice:
        """The served method, as one that is chosen."""
        return Choice.of(self.method, self.options)

    @property
    def shadow_choice(self) -> Choice | None:
        """The method that runs beside the served one on a share of the batches."""
        return None if self.shadow is None else Choice.of(self.shadow, self.shadow_options, "shadow")

    @property
    def shadow_share(self) -> float:
        """The share of the batches that the shadow predicts."""
        return SHARE if self.share is None else self.share

    @property
    def depends_on_batch(self) -> bool:
        """Whether the prediction for an image depends on others."""
        from findtta.registry import load_method

        return load_method(self.method).depends_on_batch(self.method_options())

    def under(self, choice: Choice) -> "Settings":
        """Return the settings with another method, which is not compiled: that takes longer than a request may."""
        return replace(self, method=choice.method, options=dict(choice.options), compile=False)

    @property
    def warm_up_batches(self) -> int:
        """The number of batches that a new replica warms up on."""
        from findtta.registry import load_method

        return load_method(self.method).warm_up_batches(self.method_options())

    @property
    def model_name(self) -> str:
        """The model as clients see it: without the folder of a file."""
        return Path(self.model).name

    @property
    def method_name(self) -> str:
        """The method as clients see it: without the folder of a file."""
        return public_name(self.method)

    @property
    def most_replicas(self) -> int:
        """The largest number of replicas."""
        return self.max_replicas or self.replicas

    @property
    def gpus(self) -> int:
        """The number of GPUs of each replica."""
        return int(self.device.startswith("cuda"))

    @property
    def most_images(self) -> int:
        """The largest number of images in one request."""
        return self.max_images or self.max_batch

    @property
    def max_body_bytes(self) -> int:
        """The largest body."""
        return int(self.max_body_mb * MEBIBYTE)

    @property
    def max_json_bytes(self) -> int:
        """The largest body that is JSON."""
        return int(min(self.max_json_mb, self.max_body_mb) * MEBIBYTE)

    @property
    def max_pending_bytes(self) -> int:
        """The size of all bodies that are read at one time; at least that of one."""
        return int(max(self.max_pending_mb, self.max_body_mb) * MEBIBYTE)

    def public(self) -> dict[str, Any]:
        """Return the limits that clients are told."""
        same = ("max_batch", "wait_ms", "max_body_bytes", "max_json_bytes", "max_queue", "timeout_s")
        return {
            **{name: getattr(self, name) for name in same},
            "max_images": self.most_images,
            "image_max_bytes": self.image_limits.max_bytes,
            "image_max_pixels": self.max_pixels,
        }
