"""Checks for authors of methods, streams, corruptions, partitioners and datasets.

Each check is a function whose docstring says what must hold; it raises if that is not so. They run on a small
model and on random or drawn images, in seconds.
"""

import copy
import dataclasses
import io
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from findtta.algorithms.base import Adapted, Cost
from findtta.api import adapt, unwrap
from findtta.data.corruptions import CORRUPTION, corrupt
from findtta.data.dataset import CLEAN, SEVERITIES, DomainDataset, Images, are_images, describe, domain_name
from findtta.data.open import DATASET, load_as_is
from findtta.data.shapes import Shapes
from findtta.errors import FindTTAError, UnknownNameError, few, first_line
from findtta.export.tracing import program, state_of
from findtta.functional import count_groups
from findtta.options import parse_assignments, require_known
from findtta.partitioners.base import PARTITIONER, make_partitioner
from findtta.plugins import Kind
from findtta.registry import METHOD
from findtta.streams import STREAM, Stream, make

#: What can be checked, by name.
KINDS = {kind.what: kind for kind in (METHOD, STREAM, CORRUPTION, PARTITIONER, DATASET)}

_ROUNDING = 1e-4
_BATCHES, _BATCH = 12, 8  # enough for the memory banks and warm-ups of the methods here
_BATCH_SIZES = (1, 2, 7, 32)


@dataclass(frozen=True)
class Outcome:
    """What a check found."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    why: str = ""


@dataclass(frozen=True)
class Subject:
    """What is checked: its name, what the name means, and the options that it is checked with."""

    name: str
    found: Any
    options: Mapping[str, Any]

    def adapted(self) -> Adapted:
        """Return the small model under the method."""
        return adapt(_model(), self.found, **self.options)

    def stream(self, batch_size: int = 7, seed: int = 0) -> Stream:
        """Return the stream of unequal domains."""
        part = self.found.part(_Unequal())
        return make(self.name, part, batch_size=min(batch_size, len(part)), seed=seed, **self.options)

    def dataset(self) -> DomainDataset:
        """Return the dataset, made anew."""
        return load_as_is(self.name, **self.options)

    def groups(self, features: Tensor) -> Tensor:
        """Return the labels that the partitioner gives."""
        labels: Tensor = make_partitioner(self.name, self.options)(features)
        return labels


class _BrokenError(Exception):
    """What a check says does not hold."""


class _SkippedError(Exception):
    """The check does not apply."""


_checks: dict[str, list[Callable[[Subject], None]]] = {what: [] for what in KINDS}


def _of(*kinds: Kind) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    def declare(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        for kind in kinds:
            _checks[kind.what].append(check)
        return check

    return declare


def check(name: str, kind: str | None = None) -> list[Outcome]:
    """Check a method, stream, corruption, partitioner or dataset.

    Args:
        name: A built-in name, that of an entry point, or ``file.py:NAME``; with options after it, such as
            ``"find:alpha=0.9"``, it is checked with these.
        kind: ``"method"``, ``"stream"``, ``"corruption"``, ``"partitioner"`` or ``"dataset"``; by default what the
            name means.

    Returns:
        The outcome of every check.

    Example:
        >>> {outcome.status for outcome in check("crossmix")}
        {'passed'}
    """
    found = _kind_of(name, kind)
    plain, given = found.split(name)
    subject = Subject(plain, found.load(plain), parse_assignments(f"options of {plain!r}", given))
    return [_outcome(each, subject) for each in _checks[found.what]]


def _outcome(check: Callable[[Subject], None], subject: Subject) -> Outcome:
    title = (check.__doc__ or "").rstrip(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(subject)
    except _SkippedError as reason:
        return Outcome(title, "skipped", str(reason))
    except _BrokenError as reason:
        return Outcome(title, "failed", str(reason))
    except Exception as error:  # whatever the code of others raises
        return Outcome(title, "failed", f"{type(error).__name__}: {first_line(error)}")
    return Outcome(title, "passed")


def _kind_of(name: str, asked: str | None) -> Kind:
    if asked is not None:
        require_known("kind", asked, KINDS)
        return KINDS[asked]
    built_in = [kind for kind in KINDS.values() if kind.split(name)[0] in kind.names()]
    if len(built_in) > 1:
        raise UnknownNameError(
            f"kind must be given (--kind), since {name!r} is a {' and a '.join(kind.what for kind in built_in)}."
        )
    errors = []
    for kind in built_in or KINDS.values():
        try:
            kind.load(kind.split(name)[0])
        except FindTTAError as error:
            errors.append(error)
        else:
            return kind
    if ":" in name:
        raise errors[0]
    raise UnknownNameError(
        f"name must be that of a {', '.join(KINDS)} or file.py:NAME, got {name!r}. See 'findtta methods' and "
        "'findtta streams list'."
    )


def _broken(why: str) -> NoReturn:
    raise _BrokenError(why)


def _model() -> nn.Module:
    """Return a small model with fixed weights, confident enough that methods which select samples learn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(16, 10)
        model = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            head,
        )
        with torch.no_grad():
            for name, tensor in model.named_buffers():
                if name.endswith(("mean", "var")):
                    tensor.uniform_(0.5, 1.5)
            head.weight *= 20
    return model.eval()


def _batch(seed: int = 0, count: int = _BATCH) -> Tensor:
    """Return images of three kinds of contrast and brightness, so that there are groups to find."""
    kind = torch.arange(count).remainder(3)[:, None, None, None]
    return (1 + kind) * torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + kind - 1


def _batches() -> list[Tensor]:
    return [_batch(seed) for seed in range(_BATCHES)]


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left.nan_to_num(), right.nan_to_num())


# All that have options, and a name for tables.


@_of(METHOD, STREAM)
def _is_described(subject: Subject) -> None:
    """It has a name and a summary, and a method a citation and when it fails."""
    needed = ("name", "summary") + (("citation", "weakness") if issubclass(subject.found, Adapted) else ())
    if missing := [name for name in needed if not getattr(subject.found, name, "")]:
        _broken(f"set the class attributes {few(missing)}")


@_of(METHOD, STREAM, PARTITIONER)
def _options_are_declared(subject: Subject) -> None:
    """Options say what they mean, and refuse values of a wrong type."""
    kind = getattr(subject.found, "options_type", subject.found)
    if not isinstance(kind, type):
        raise _SkippedError("a function has no options")
    if lost := [name for name, value in vars(kind).items() if isinstance(value, dataclasses.Field)]:
        _broken(f"{kind.__name__} must be decorated with @dataclass(frozen=True), or {few(lost)} is not an option")
    for field in dataclasses.fields(kind):
        if not field.metadata.get("meaning"):
            _broken(f"{field.name} has no meaning: declare it with option(default, meaning)")
        try:
            kind(**{field.name: object()})
        except FindTTAError:
            continue
        except Exception as error:
            _broken(f"{field.name}=object() raises {type(error).__name__} instead of an OptionError")
        _broken(f"{field.name}=object() is accepted: give it a type of findtta.options, or check it")


# Methods.


@_of(METHOD)
def _stateful(subject: Subject) -> None:
    """Later outputs depend on earlier batches if it is declared stateful, and only then."""
    adapted = subject.adapted()
    fresh, first = _state(adapted), adapted(_batch())
    for batch in _batches():
        adapted(batch)
    changed = not _same(adapted(_batch()), first)
    if changed and not subject.found.stateful:
        _broken(f"{_BATCHES} batches changed the outputs for the first: declare stateful = True, or keep no state")
    if subject.found.stateful and not changed and _state(adapted) == fresh:
        _broken(f"{_BATCHES} batches changed nothing: declare stateful = False")


def _state(adapted: Adapted) -> Any:
    return tree_map_only(Tensor, Tensor.tolist, dict(adapted.state_dict()))


@_of(METHOD)
def _batch_dependent(subject: Subject) -> None:
    """An output depends on the other samples if it is declared batch_dependent, and only then."""
    together = subject.adapted()(_batch())
    alone = torch.cat([subject.adapted()(sample[None]) for sample in _batch()])
    largest, declared = float((together - alone).abs().max()), subject.found.batch_dependent
    if (largest > _ROUNDING) != declared:
        _broken(f"outputs alone and in a batch differ by {largest:.2g}: declare batch_dependent = {not declared}")


@_of(METHOD)
def _passes(subject: Subject) -> None:
    """Forward and backward passes are those that it declares, and so are gradients."""
    counted: Counter[str] = Counter()
    model, most = _model(), Cost(0, 0)
    model.register_forward_pre_hook(lambda *_: counted.update(["forward"]))
    adapted = adapt(model, subject.found, **subject.options)
    with _counting_gradients(counted):
        for batch in _batches():
            counted.clear()
            if adapted(batch).requires_grad:
                _broken("outputs require gradients: detach them")
            most = max(most, Cost(counted["forward"], counted["backward"]), key=dataclasses.astuple)
    if most != adapted.cost:
        _broken(f"counted were {most.forward} forward and {most.backward} backward, declared is {adapted.cost}")
    if bool(most.backward) != subject.found.needs_grad:
        _broken(f"declare needs_grad = {bool(most.backward)}")


@contextmanager
def _counting_gradients(counted: Counter[str]) -> Iterator[None]:
    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counted["backward"] += 1
            return function(*args, **kwargs)

        return call

    autograd = torch.autograd
    with (
        mock.patch.object(autograd, "backward", counting(autograd.backward)),
        mock.patch.object(autograd, "grad", counting(autograd.grad)),
    ):
        yield


@_of(METHOD)
def _reset(subject: Subject) -> None:
    """After reset() a stream gives the first outputs again, bit for bit."""
    adapted = subject.adapted()
    first = [adapted(batch) for batch in _batches()]
    adapted.reset()
    for index, (batch, output) in enumerate(zip(_batches(), first, strict=True)):
        if not _same(adapted(batch), output):
            _broken(f"batch {index} differs: reset what it keeps, and draw from self.generator only")


@_of(METHOD)
def _state_dict(subject: Subject) -> None:
    """A state dict saved in the middle of a stream goes on in a new model, bit for bit."""

    def saved(adapted: Adapted) -> Adapted:
        file, other = io.BytesIO(), subject.adapted()
        torch.save(adapted.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    _goes_on(subject, saved, "keep it in buffers, in 'remembered' or in get_extra_state")


@_of(METHOD)
def _deepcopy(subject: Subject) -> None:
    """A deep copy made in the middle of a stream goes on alike, bit for bit."""
    _goes_on(subject, copy.deepcopy, "copies must share nothing that changes")


def _goes_on(subject: Subject, carry: Callable[[Adapted], Adapted], advice: str) -> None:
    adapted, batches = subject.adapted(), _batches()
    for batch in batches[: _BATCHES // 2]:
        adapted(batch)
    other = carry(adapted)
    expected = [adapted(batch) for batch in batches[_BATCHES // 2 :]]
    for index, (batch, output) in enumerate(zip(batches[_BATCHES // 2 :], expected, strict=True)):
        if not _same(other(batch), output):
            _broken(f"batch {index} after it differs: {advice}")


@_of(METHOD)
def _warm_up(subject: Subject) -> None:
    """The warm-up ends when it is declared to, and only a method that settles is fixed from then on."""
    adapted, kind = subject.adapted(), subject.found
    total = kind.warm_up_batches(adapted.options)
    for seen, batch in enumerate(_batches()):
        if adapted.warm_up_left != max(0, total - seen):
            _broken(f"warm_up_left is {adapted.warm_up_left} after {seen} batches, and the warm-up takes {total}")
        adapted(batch)
    if kind.settles and not kind.stateful:
        _broken("settles is for stateful methods: a warm-up is a state")
    if not kind.stateful or total > _BATCHES:
        return
    state = _state(adapted)
    adapted(_batch())
    if (_state(adapted) == state) != kind.settles:
        _broken(f"declare settles = {not kind.settles}")


@_of(METHOD)
def _modes(subject: Subject) -> None:
    """train(), eval(), no_grad and inference_mode change nothing."""
    plain, other = subject.adapted(), subject.adapted()
    for index, batch in enumerate(_batches()[:6]):
        expected = plain(batch)
        other.train(index % 2 == 0)
        with (torch.no_grad(), torch.inference_mode(), torch.enable_grad())[index % 3]:
            if not _same(other(batch), expected):
                _broken(f"outputs differ after train({index % 2 == 0})")


@_of(METHOD)
def _model_is_kept(subject: Subject) -> None:
    """The user's model is not changed, and unwrap gives it back."""
    model = _model()
    before, expected = _snapshot(model), _model()(_batch())
    adapted = adapt(model, subject.found, **subject.options)
    for batch in _batches():
        adapted(batch)
    if _snapshot(model) != before:
        _broken("the model that was adapted has changed: work on the copy that __init__ is given")
    if not _same(unwrap(adapted)(_batch()), expected):
        _broken("unwrap gives a model with other outputs than the source model: undo all changes in restore()")
    inside = adapt(model, subject.found, inplace=True, **subject.options)
    inside(_batch())
    if unwrap(inside) is not model or _snapshot(model) != before:
        _broken("unwrap does not give back the model that was adapted in place: undo all changes in restore()")


def _snapshot(model: nn.Module) -> list[Any]:
    modules = [(name, type(module), module.training) for name, module in model.named_modules()]
    gradients = [parameter.requires_grad for parameter in model.parameters()]
    return [modules, gradients, {name: tensor.tolist() for name, tensor in model.state_dict().items()}]


@_of(METHOD)
def _batch_sizes(subject: Subject) -> None:
    """Batches of one sample and a short last batch give finite outputs."""
    for sizes in ((1, 1, 1), (_BATCH, _BATCH, 3)):
        adapted = subject.adapted()
        for seed, size in enumerate(sizes):
            outputs = adapted(_batch(seed, size))
            if outputs.shape != (size, 10) or not outputs.isfinite().all():
                _broken(f"a batch of {size} gives outputs of shape {tuple(outputs.shape)}, or not finite ones")


@_of(METHOD)
def _not_finite(subject: Subject) -> None:
    """A sample with NaN changes no other output, in its batch and in the next."""
    dirty, clean, batch = subject.adapted(), subject.adapted(), _batch()
    others = torch.arange(_BATCH) != 2
    batch[2] = torch.nan
    outputs = dirty(batch)[others]
    if not outputs.isfinite().all():
        _broken(
            "other outputs of the batch are not finite: leave such samples out (findtta.functional.batch_moments)"
        )
    difference = float((outputs - clean(batch[others])).abs().max())
    if difference > 10 * _ROUNDING:
        _broken(f"other outputs of the batch differ by {difference:.2g} from those without it")
    if not dirty(_batch(1)).isfinite().all():
        _broken("outputs of the next batch are not finite: do not keep what is not finite")


@_of(METHOD)
def _threads(subject: Subject) -> None:
    """Several threads get the outputs that each would get alone."""
    if subject.found.stateful:
        raise _SkippedError("it is stateful, so that the order of the calls matters")
    adapted, threads = subject.adapted(), 4
    batches = [_batch(seed, 3 + seed % 5) for seed in range(10 * threads)]
    expected = [adapted(batch) for batch in batches]
    barrier = threading.Barrier(threads)

    def work(first: int) -> bool:
        barrier.wait(timeout=60)
        mine = range(first, len(batches), threads)
        return all([_same(adapted(batches[index]), expected[index]) for index in mine])

    with ThreadPoolExecutor(threads) as pool:
        if not all(list(pool.map(work, range(threads)))):
            _broken("keep what belongs to one call in self.call, not in attributes")


@_of(METHOD)
def _export(subject: Subject) -> None:
    """A method that is declared exportable can be traced, and the graph gives its outputs."""
    adapted = subject.adapted()
    if not subject.found.exportable:
        raise _SkippedError("it is declared not to be exportable")
    if problem := adapted.export_problem():
        raise _SkippedError(problem)
    for batch in _batches():
        adapted(batch)
    state = state_of(adapted)
    traced = program(adapted, _batch(), max_batch=16).module()
    difference = 0.0
    for batch in (_batch(), _batch(1, 5)):
        with torch.no_grad():
            outputs, state = traced(batch, state) if state else (traced(batch), state)
        difference = max(difference, float((outputs - adapted(batch)).abs().max()))
    if difference > 10 * _ROUNDING:
        _broken(f"outputs of the graph differ by {difference:.2g}")


# Streams.


class _Unequal(DomainDataset):
    """Domains with different numbers of samples; more can be asked for, as where drift is made on the fly."""

    name, image_size, classes = "unequal", (1, 1), tuple("abcde")

    def __init__(self, more: Sequence[str] = ()) -> None:
        kinds = {"fog": 90, "snow": 41, "contrast": 63} | {kind: 30 + place for place, kind in enumerate(more)}
        self._counts = {CLEAN: 400} | {
            domain_name(kind, severity): count + severity
            for kind, count in kinds.items()
            for severity in SEVERITIES
        }
        self.domains = tuple(self._counts)

    def labels(self, domain: str) -> Any:
        return np.arange(self._counts[domain]) * 3 % len(self.classes)

    def images(self, domain: str, rows: Any) -> Any:
        return np.zeros((len(rows), 1, 1, 3), np.uint8)

    def extended(self, kinds: Sequence[str]) -> DomainDataset:
        return _Unequal(kinds)


@_of(STREAM)
def _same_seed(subject: Subject) -> None:
    """The same seed gives the same stream."""
    if subject.stream().digest != subject.stream().digest:
        _broken("draw random numbers from findtta.streams.generator(seed, purpose) only")


@_of(STREAM)
def _other_seed(subject: Subject) -> None:
    """Other seeds give other orders."""
    orders = {
        (stream.domain_ids.tobytes(), stream.rows.tobytes())
        for stream in (subject.stream(seed=seed) for seed in range(4))
    }
    if len(orders) < 4:
        _broken(f"4 seeds give {len(orders)} different orders")


@_of(STREAM)
def _samples_once(subject: Subject) -> None:
    """Rows exist, and no sample comes more than once in a pass over the data."""
    stream = subject.stream()
    rounds = np.repeat(stream.rounds, stream.sizes)
    places = np.stack([rounds, stream.domain_ids, stream.rows])
    most = int(np.unique(places, axis=1, return_counts=True)[1].max())
    if most > 1:
        _broken(f"a sample comes {most} times: declare rounds in the Order, or draw without replacement")


@_of(STREAM)
def _stream_batches(subject: Subject) -> None:
    """Batches of every size asked for have samples, and not more than that."""
    for batch_size in _BATCH_SIZES:
        sizes = subject.stream(batch_size).sizes
        if sizes.min() < 1 or sizes.max() > batch_size:
            _broken(f"with batch_size={batch_size}, batches have {sizes.min()} to {sizes.max()} samples")


# Corruptions.


def _shapes() -> Images:
    return Shapes(count=6).images(CLEAN, np.arange(6))


@_of(CORRUPTION)
def _corrupted_images(subject: Subject) -> None:
    """Images of any shape and severity stay uint8 images of that shape, and the input is not changed."""
    for images in (_shapes(), np.ascontiguousarray(np.tile(_shapes(), (1, 2, 1, 1))[:, :40])):
        before = images.copy()
        for severity in SEVERITIES:
            corrupt(images, subject.name, severity, threads=1)
        if not np.array_equal(images, before):
            _broken("the input has changed")


@_of(CORRUPTION)
def _corruption_repeats(subject: Subject) -> None:
    """The same seed and rows give the same images."""
    first, second = (corrupt(_shapes(), subject.name, 3, threads=1) for _ in range(2))
    if not np.array_equal(first, second):
        _broken("draw random numbers from keys only (findtta.data.randomness)")


@_of(CORRUPTION)
def _corrupted_alone(subject: Subject) -> None:
    """An image does not depend on the other images, nor on its place among them."""
    whole, rows = corrupt(_shapes(), subject.name, 3, threads=1), np.array([4, 1])
    if not np.array_equal(corrupt(_shapes()[rows], subject.name, 3, index=rows, threads=1), whole[rows]):
        _broken("images 4 and 1 differ when they are corrupted without the others")


@_of(CORRUPTION)
def _severities(subject: Subject) -> None:
    """Every severity changes images, each in its own way."""
    clean = _shapes().astype(float)
    changes = [float(np.abs(corrupt(_shapes(), subject.name, level) - clean).mean()) for level in SEVERITIES]
    if min(changes) == 0 or len(set(changes)) < len(changes):
        _broken(f"mean changes at severity 1 to 5 are {', '.join(f'{change:.3g}' for change in changes)}")


# Partitioners.


def _features(count: int = 24) -> Tensor:
    """Return features in three directions that are far apart, so that their groups do not hang on rounding."""
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.randn(3, 6, generator=generator)
    return centres[torch.arange(count) % 3] + 0.3 * torch.randn(count, 6, generator=generator)


@_of(PARTITIONER)
def _labels(subject: Subject) -> None:
    """Labels are the index of a member of the group, one for each sample, also of few or equal samples."""
    for features in (_features(), _features(1), _features(2), torch.zeros(5, 4), torch.ones(5, 4)):
        labels = subject.groups(features)
        if labels.dtype != torch.int64 or labels.shape != (len(features),):
            _broken(f"{len(features)} samples give {describe(labels)}")
        if not torch.equal(labels[labels.clamp(0, len(labels) - 1)], labels):
            _broken(f"labels {labels.tolist()} do not name members of their groups")


@_of(PARTITIONER)
def _labels_repeat(subject: Subject) -> None:
    """The same features give the same labels, and are not changed."""
    features = _features()
    if not torch.equal(subject.groups(features), subject.groups(_features())):
        _broken("labels differ when it is called again")
    if not torch.equal(features, _features()):
        _broken("the features have changed")


@_of(PARTITIONER)
def _permutation(subject: Subject) -> None:
    """Groups do not depend on the order of the samples."""
    if getattr(subject.found, "depends_on_order", False):
        raise _SkippedError("it declares depends_on_order")
    features, order = _features(), torch.randperm(24, generator=torch.Generator().manual_seed(1))
    labels, permuted = subject.groups(features)[order], subject.groups(features[order])
    if not torch.equal(labels[:, None] == labels, permuted[:, None] == permuted):
        _broken("samples in another order are grouped in another way")


@_of(PARTITIONER)
def _poisoned(subject: Subject) -> None:
    """A sample with NaN forms a group of its own, and changes no other group."""
    features = _features()
    features[3, 1] = torch.nan
    labels, others = subject.groups(features), torch.arange(24) != 3
    if int((labels == labels[3]).sum()) != 1:
        _broken("it shares a group with others")
    if int(count_groups(subject.groups(features[others]))) != int(count_groups(labels)) - 1:
        _broken("there are other groups without it")


# Datasets.


@_of(DATASET)
def _names(subject: Subject) -> None:
    """Names of domains and classes are distinct, and every domain has labels of these classes."""
    dataset = subject.dataset()
    for what in ("domains", "classes"):
        values = getattr(dataset, what)
        if not isinstance(values, tuple) or not values or len(set(values)) < len(values):
            _broken(f"{what} must be a tuple of distinct names, got {values!r}")
    for domain in dataset.domains:
        labels = np.asarray(dataset.labels(domain))
        if labels.ndim != 1 or labels.dtype.kind != "i" or not len(labels):
            _broken(f"labels of {domain!r} must be a list of whole numbers, got {describe(labels)}")
        if labels.min() < 0 or labels.max() >= len(dataset.classes):
            _broken(
                f"labels of {domain!r} are {labels.min()} to {labels.max()}, of {len(dataset.classes)} classes"
            )


@_of(DATASET)
def _dataset_images(subject: Subject) -> None:
    """Images are uint8 of the declared size, one for each row that is asked for, in that order."""
    dataset = subject.dataset()
    for domain in dataset.domains:
        rows = np.linspace(0, len(dataset.labels(domain)) - 1, 4).astype(np.int64)
        images = dataset.images(domain, rows)
        if not are_images(images) or images.shape[:3] != (4, *dataset.image_size):
            _broken(f"4 images of {domain!r} at {dataset.image_size} have {describe(images)}")
        if not np.array_equal(dataset.images(domain, rows[::-1].copy()), images[::-1]):
            _broken(f"images of {domain!r} differ when they are asked for in another order")


@_of(DATASET)
def _identity(subject: Subject) -> None:
    """Opened again, it has the same identity."""
    if subject.dataset().identity != subject.dataset().identity:
        _broken("labels or images differ: draw random numbers by seed and row")


@_of(DATASET)
def _unknown_domain(subject: Subject) -> None:
    """An unknown domain is refused with an error that helps."""
    try:
        subject.dataset().labels("no such domain")
    except FindTTAError:
        return
    _broken("labels('no such domain') must raise: call self.check_domain(domain)")
