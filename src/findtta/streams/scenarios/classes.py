"""Classes that do not come at random either: label-sorted, wild, markov."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from findtta.data.dataset import DomainDataset
from findtta.options import option, require_number
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, generator, labels_of, mixed
from findtta.streams.scenarios.turns import Random, in_random_order, static_and_crossmix, take_turns

Floats = NDArray[np.float64]
_probability = partial(require_number, low=0, high=1)
_ratio = partial(require_number, low=1, high=1e6)


@dataclass(frozen=True)
class LabelSorted(Scenario):
    """One class after the other, each with the samples of all domains in random order.

    The order of the classes is drawn. Batches are cut without regard to classes, so that where every class has at
    least a batch of samples, a batch holds one or two of them.
    """

    name = "label-sorted"
    summary = "all domains mixed in every batch, one class after the other"

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = mixed(dataset, seed)
        places = generator(seed, "order of classes").permutation(len(dataset.classes))
        order = np.argsort(places[labels_of(dataset, domain_ids, rows)], kind="stable")
        return Order(domain_ids[order], rows[order], batch_sizes([len(dataset)], batch_size))


@dataclass(frozen=True)
class Wild(Random):
    """Random, and in each batch few classes.

    The domains of a batch are those of Random. Its classes have probabilities drawn from a Dirichlet distribution,
    the same for all its domains, whose concentrations are delta on average and proportional to what these domains
    have left of each class. What a domain lacks of the classes it draws comes from other classes of the batch, or
    else from the class that fills most of the gap. The order within a batch is random.

    The paper applies NOTE's sampler to each domain, which deals its samples into as many chunks as there are
    classes: the number of classes in a batch then depends on the number of images. Here it depends on delta, the
    batch size and the number of classes only, apart from what domains lack: a batch that takes 64 images from a
    domain with 13 of each class has at least 5 classes.

    In the authors' code of an earlier method (DYW77/DATTA) that sampler sorts all domains together, after mixing
    them (``"authors"``; CrossHeterMixture), or each domain, as a third pass over the data whose batches join those
    of its Random (``"authors-random"``; BatchMixing with Homo&Cross&Heter and Shuffle_Shuffle). The paper's
    numbers fit the second. It draws anew where a chunk has nearly no samples, which is left out here.
    """

    name = "wild"
    summary = "a random number of domains in each batch, and few classes"

    variant: Literal["text", "paper", "authors", "authors-random"] = option(  # type: ignore[assignment]
        "text",
        "'text' or 'paper' (the domains of that variant of random), 'authors' (all domains mixed, in pieces of "
        "one class) or 'authors-random' (the batches of random:variant=authors, and of domains sorted so)",
    )
    delta: Annotated[float, partial(require_number, low=1e-6, high=1e6)] = option(
        0.1, "concentration of the Dirichlet distribution; the smaller, the fewer classes in a batch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", float(self.delta))  # 1 and 1.0 are the same stream

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        if self.variant == "authors":
            return self._in_pieces(dataset, [mixed(dataset, seed)], batch_size, seed)
        if self.variant == "authors-random":
            self.require_two_domains(dataset)
            each_domain = [(np.full(count, index), np.arange(count)) for index, count in enumerate(dataset.counts)]
            sorted_domains = self._in_pieces(dataset, each_domain, batch_size, seed)
            passes = [*static_and_crossmix(dataset, batch_size, seed), sorted_domains]
            return in_random_order(take_turns(passes), seed)
        order = super().arrange(dataset, batch_size, seed)
        domain_ids, rows = mixed(dataset, seed)
        classes = len(dataset.classes)
        cells = domain_ids * classes + labels_of(dataset, domain_ids, rows)
        numbers = np.arange(len(dataset.domains) * classes).reshape(-1, classes)
        left = np.bincount(cells, minlength=numbers.size).reshape(numbers.shape)
        random = generator(seed, "classes of batches")
        batches = np.split(order.domain_ids, order.sizes.cumsum()[:-1])
        # Those that draw last get what is left, of many classes: in random order, they are all over the stream.
        for index in random.permutation(len(batches)):
            domains, sizes = np.unique(batches[index], return_counts=True)
            taken = _draw_classes(left[domains], sizes, self.delta, random)
            left[domains] -= taken
            batches[index] = random.permutation(np.repeat(numbers[domains].ravel(), taken.ravel()))
        served = np.concatenate(batches)
        in_order = np.empty_like(rows)
        in_order[np.argsort(served, kind="stable")] = rows[np.argsort(cells, kind="stable")]
        return Order(served // classes, in_order, order.sizes)

    def _in_pieces(
        self, dataset: DomainDataset, stretches: Sequence[tuple[Ints, Ints]], batch_size: int, seed: int
    ) -> Order:
        """Return stretches of samples one after the other, each sorted into pieces of one class."""
        parts = []
        for index, (domain_ids, rows) in enumerate(stretches):
            labels, random = labels_of(dataset, domain_ids, rows), generator(seed, "pieces of one class", index)
            order = _sort_into_pieces(labels, len(dataset.classes), self.delta, random)
            parts.append((domain_ids[order], rows[order]))
        domain_ids, rows = np.concatenate(parts, axis=1)
        return Order(domain_ids, rows, batch_sizes([len(dataset)], batch_size))


def _sort_into_pieces(labels: Ints, classes: int, delta: float, random: np.random.Generator) -> Ints:
    """Return positions in the order of NOTE's sampler.

    The samples of every class are dealt, in shares of a Dirichlet distribution, to as many chunks as there are
    classes, but to none that has its part of all samples already. In a chunk one class comes after the other.
    """
    positions = random.permutation(len(labels))
    labels = labels[positions]
    chunks, sizes = np.empty_like(labels), np.zeros(classes, np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        unfilled = np.flatnonzero(sizes < len(labels) / classes)
        # The sampler sets the shares of filled chunks to 0 and scales the others: those have this distribution.
        cuts = random.dirichlet(np.full(len(unfilled), delta)).cumsum()[:-1] * len(members)
        chunks[members] = unfilled[np.searchsorted(cuts.astype(np.int64), np.arange(len(members)), side="right")]
        sizes += np.bincount(chunks[members], minlength=classes)
    places = random.permuted(np.tile(np.arange(classes), (classes, 1)), axis=1)
    return positions[np.lexsort((places[chunks, labels], chunks))]


def _draw_classes(left: Ints, sizes: Ints, delta: float, random: np.random.Generator) -> Ints:
    """Draw how many samples of each class every domain of a batch gives, shape (domains, classes).

    ``left`` is what the domains have of each class, of the same shape; ``sizes`` is what each gives altogether.
    """
    present = np.flatnonzero(left.any(axis=0))
    concentration = delta * left.shape[1] * left[:, present].sum(axis=0) / left.sum()
    # Gamma(c) is Gamma(c + 1) times a power of a uniform number, as logarithms, so that a small delta cannot
    # underflow to shares that are all zero; 1 - u lies in (0, 1].
    logs = np.full(left.shape[1], -np.inf)
    logs[present] = np.log(random.standard_gamma(concentration + 1))
    logs[present] += np.log(1 - random.random(len(present))) / concentration
    shares = np.exp(logs - logs.max())
    taken = np.minimum(random.multinomial(sizes, shares / shares.sum()), left)
    while (missing := sizes - taken.sum(axis=1)).any():
        fills = np.minimum(left - taken, missing[:, None])
        filled = fills.sum(axis=0)
        # A class that the batch has, or else the one that fills most; of equal ones the most probable.
        chosen = np.lexsort((logs, filled, taken.any(axis=0) & (filled > 0)))[-1]
        taken[:, chosen] += fills[:, chosen]
    return taken


@dataclass(frozen=True)
class Markov(Scenario):
    """Domain and class of a sample depend on those of the sample before, as in UniTTA's benchmark.

    With probability ``domain_stay`` a sample has the domain of the one before, else any, in proportion to what is
    left of each; and so for the class, independently. With 0 and 0 this is CrossMix in another order. The
    ``domain_ratio`` is how many samples the most frequent domain has for one of the rarest, those between in
    geometric steps, in an order that is drawn; with 1 all samples are used. The ``class_ratio`` is that of
    classes. No sample comes twice: where what should stay has run out, first the class changes, then the domain.
    """

    name = "markov"
    summary = "runs of one domain and runs of one class, of any length, balanced or not"

    domain_stay: Annotated[float, _probability] = option(0.95, "probability that the domain stays; 0: independent")
    class_stay: Annotated[float, _probability] = option(0.95, "probability that the class stays; 0: independent")
    domain_ratio: Annotated[float, _ratio] = option(
        1.0, "samples of the most frequent domain for one of the rarest"
    )
    class_ratio: Annotated[float, _ratio] = option(1.0, "samples of the most frequent class for one of the rarest")

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):  # 1 and 1.0 are the same stream
            object.__setattr__(self, field.name, float(getattr(self, field.name)))

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = mixed(dataset, seed)
        shape = len(dataset.domains), len(dataset.classes)
        cells = domain_ids * shape[1] + labels_of(dataset, domain_ids, rows)
        random = generator(seed, "domains and classes in turn")
        shares = np.outer(*map(partial(_shares, random), shape, (self.domain_ratio, self.class_ratio)))
        available = np.bincount(cells, minlength=shares.size).reshape(shape)
        # Rounded up or down at random: with few samples of each, rounding alone would level the shares.
        used = np.floor(available * shares + random.random(shape)).astype(np.int64)
        served = _walk(used, (self.domain_stay, self.class_stay), random)
        # Every cell gives its samples in the order of ``mixed``.
        queue, ranks = np.argsort(cells, kind="stable"), np.argsort(served, kind="stable")
        starts = available.cumsum() - available.ravel()
        turns = np.arange(len(served)) - np.repeat(used.cumsum() - used.ravel(), used.ravel())
        chosen = np.empty_like(served)
        chosen[ranks] = queue[starts[served[ranks]] + turns]
        return Order(domain_ids[chosen], rows[chosen], batch_sizes([len(served)], batch_size))


def _shares(random: np.random.Generator, count: int, ratio: float) -> Floats:
    """Return which part of each domain or class is used, from all down to one in ``ratio``, in random order."""
    return random.permutation(ratio ** -np.linspace(0, 1, count))


def _walk(left: Ints, stays: tuple[float, float], random: np.random.Generator) -> Ints:
    """Return the cell of each sample of a stream, its place in the flat table of what is left of all cells."""
    left, cells = left.copy(), np.arange(left.size).reshape(left.shape)
    count, whole = int(left.sum()), slice(None)
    staying, draws = random.random((count, 2)) < stays, random.random(count)
    staying[:1] = False
    served = np.empty(count, np.int64)
    cell = 0
    for index, (domain_stays, class_stays) in enumerate(staying):
        domain, label = divmod(cell, left.shape[1])
        row = slice(domain, domain + 1) if domain_stays else whole
        column = slice(label, label + 1) if class_stays else whole
        for where in ((row, column), (row, whole), (whole, column), (whole, whole)):
            sums = left[where].cumsum()
            if sums[-1]:
                break
        cell = int(cells[where].flat[np.searchsorted(sums, int(draws[index] * sums[-1]), side="right")])
        left.flat[cell] -= 1
        served[index] = cell
    return served
