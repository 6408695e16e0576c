"""Extensions that each break one rule; the key of ``BROKEN`` is the name of the check that must notice."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from findtta import Adapted, AdaptiveNorm, Cost, GradientAdapted, Options, option
from findtta.algorithms.tbn import BatchStatisticsNorm
from findtta.data import DomainDataset
from findtta.functional import batch_moments
from findtta.partitioners import Partitioner
from findtta.streams import Order, Scenario, batch_sizes, generator, serve_shuffled

BROKEN: dict[str, list[tuple[str, str]]] = {}


def breaks(check, message):
    def declare(found):
        BROKEN.setdefault(check, []).append((f"{__name__}:{found.__name__}", message))
        return found

    return declare


# Methods.


class Plain(Adapted):
    """What the others are made from: nothing is wrong with it."""

    name, summary, citation, weakness = "plain", "a summary", "a citation", "a weakness"

    def make_layer(self, norm):
        return BatchStatisticsNorm(norm)


@breaks("_is_described", "weakness")
class NoWeakness(Plain):
    weakness = ""


@dataclass(frozen=True)
class Unchecked(Options):
    rate: float = option(0.1, "a rate of any type")


@breaks("_options_are_declared", r"rate=object\(\) is accepted")
class UncheckedOption(Plain):
    options_type = Unchecked


@dataclass(frozen=True)
class Meaningless(Options):
    rate: bool = False


@breaks("_options_are_declared", "rate has no meaning")
class MeaninglessOption(Plain):
    options_type = Meaningless


class NoDataclass(Options):
    rate: bool = option(False, "a flag")


@breaks("_options_are_declared", "must be decorated")
class NotAnOption(Plain):
    options_type = NoDataclass


@breaks("_stateful", "changed nothing")
class NoState(Plain):
    stateful = True


class Counting(BatchStatisticsNorm):
    """Moves its outputs a little with every batch."""

    def __init__(self, norm):
        super().__init__(norm)
        self.register_buffer("seen", torch.zeros(()))

    def statistics(self, mean, variance):
        mean, variance = super().statistics(mean, variance)
        self.seen += 1
        return mean + 0.1 * self.seen, variance

    def reset(self):
        super().reset()
        self.seen.zero_()


@breaks("_stateful", "declare stateful = True")
class HiddenState(Plain):
    def make_layer(self, norm):
        return Counting(norm)


@breaks("_batch_dependent", "declare batch_dependent = False")
class Independent(Plain):
    def make_layer(self, norm):
        return SourceNorm(norm)


class SourceNorm(AdaptiveNorm):
    def statistics(self, mean, variance):
        return self.source_statistics(mean, variance)


@breaks("_batch_dependent", "declare batch_dependent = True")
class Dependent(Plain):
    batch_dependent = False


@breaks("_passes", "counted were 1 forward")
class TwoPasses(Plain):
    passes = Cost(forward=2, backward=0)


@breaks("_passes", "declare needs_grad = True")
class HiddenGradient(GradientAdapted):
    name, summary, citation = "hidden", "a summary", "a citation"
    needs_grad = False

    def learn(self, inputs):
        logits = self.logits(inputs)
        self.descend(logits.square().mean())
        return logits


class Forgetful(Counting):
    def reset(self):
        """Forget nothing."""


@breaks("_reset", "batch 0 differs")
class NoReset(Plain):
    stateful = True

    def make_layer(self, norm):
        return Forgetful(norm)


class Unsaved(Counting):
    def __init__(self, norm):
        super().__init__(norm)
        del self.seen
        self.seen = torch.zeros(())


@breaks("_state_dict", "keep it in buffers")
class NotSaved(Plain):
    stateful = True

    def make_layer(self, norm):
        return Unsaved(norm)


class Shared:
    """A number that copies share."""

    def __init__(self):
        self.seen = 0

    def __deepcopy__(self, memo):
        return self


class SharedNorm(BatchStatisticsNorm):
    def __init__(self, norm):
        super().__init__(norm)
        self.shared = Shared()

    def statistics(self, mean, variance):
        mean, variance = super().statistics(mean, variance)
        self.shared.seen += 1
        return mean + 0.1 * self.shared.seen, variance


@breaks("_deepcopy", "share nothing")
class SharesState(Plain):
    stateful = True

    def make_layer(self, norm):
        return SharedNorm(norm)


@breaks("_warm_up", "warm_up_left is 2 after 1 batches")
class EndlessWarmUp(Plain):
    stateful = True

    @classmethod
    def warm_up_batches(cls, options):
        return 2

    @property
    def warm_up_left(self):
        return 2


@breaks("_warm_up", "declare settles = False")
class NeverSettles(Plain):
    stateful = settles = True

    def make_layer(self, norm):
        return Counting(norm)


@breaks("_modes", r"after train\(True\)")
class ListensToTrain(Plain):
    mode = False

    def train(self, mode=True):
        self.mode = mode
        return super().train(mode)

    def run(self, *args):
        return super().run(*args) * (2 if self.mode else 1)


@breaks("_model_is_kept", "has changed")
class WritesIntoTheModel(Plain):
    def prepare(self, model, sites):
        import inspect

        for frame in inspect.stack():  # the user's model, which adapt keeps away from methods
            original = frame.frame.f_locals.get("model")
            if isinstance(original, nn.Module) and frame.function == "_model_is_kept":
                with torch.no_grad():
                    original[0][0].weight.add_(1)


@breaks("_model_is_kept", "other outputs than the source model")
class ForgetsToRestore(Plain):
    def prepare(self, model, sites):
        with torch.no_grad():
            model[4].bias.add_(1)


class NeedsTwo(BatchStatisticsNorm):
    def statistics(self, mean, variance):
        return mean.mean(0), mean.var(0)


@breaks("_batch_sizes", "a batch of 1 gives")
class UnbiasedOfOne(Plain):
    def make_layer(self, norm):
        return NeedsTwo(norm)


class NaiveMean(BatchStatisticsNorm):
    def statistics(self, mean, variance):
        return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)


@breaks("_not_finite", "other outputs of the batch are not finite")
class SpreadsNaN(Plain):
    def make_layer(self, norm):
        return NaiveMean(norm)


class Attribute(BatchStatisticsNorm):
    def statistics(self, mean, variance):
        self.of_this_call = batch_moments(mean, variance)
        time.sleep(0.0005)  # time for another thread
        return self.of_this_call


@breaks("_threads", "self.call")
class KeepsCallsInAttributes(Plain):
    def make_layer(self, norm):
        return Attribute(norm)


class Untraceable(BatchStatisticsNorm):
    def statistics(self, mean, variance):
        mean, variance = super().statistics(mean, variance)
        return (mean, variance) if float(mean.sum()) > 0 else (mean + 0, variance)


@breaks("_export", "cannot trace")
class NotExportable(Plain):
    def make_layer(self, norm):
        return Untraceable(norm)


# Streams.


@dataclass(frozen=True)
class Whole(Scenario):
    """All samples once; nothing is wrong with it."""

    name, summary = "whole", "a summary"

    def arrange(self, dataset, batch_size, seed):
        domain_ids = generator(seed, "whole").permutation(
            np.repeat(np.arange(len(dataset.domains)), dataset.counts)
        )
        rows = serve_shuffled(domain_ids, dataset, seed)
        return Order(domain_ids, rows, batch_sizes([len(rows)], batch_size))


@breaks("_same_seed", "generator")
class Unseeded(Whole):
    def arrange(self, dataset, batch_size, seed):
        return super().arrange(dataset, batch_size, int(np.random.default_rng().integers(1 << 30)))


@breaks("_other_seed", "4 seeds give 1 different orders")
class OneSeed(Whole):
    def arrange(self, dataset, batch_size, seed):
        return super().arrange(dataset, batch_size, 0)


@breaks("_samples_once", "a sample comes")
class WithReplacement(Whole):
    def arrange(self, dataset, batch_size, seed):
        order = super().arrange(dataset, batch_size, seed)
        return Order(order.domain_ids, order.rows // 2, order.sizes)


@breaks("_samples_once", "rows that do not exist")
class RowsThatDoNotExist(Whole):
    def arrange(self, dataset, batch_size, seed):
        order = super().arrange(dataset, batch_size, seed)
        return Order(order.domain_ids, order.rows + 1, order.sizes)


@breaks("_stream_batches", "batches have")
class TooLarge(Whole):
    def arrange(self, dataset, batch_size, seed):
        order = super().arrange(dataset, batch_size, seed)
        return Order(order.domain_ids, order.rows, batch_sizes([len(order.rows)], 2 * batch_size))


# Corruptions.


@breaks("_corrupted_images", "must return uint8 images")
def returns_floats(images, keys, severity):
    return images / 2


@breaks("_corruption_repeats", "keys")
def unseeded_noise(images, keys, severity):
    return np.random.default_rng().integers(0, 255, images.shape).astype(np.uint8)


@breaks("_corrupted_alone", "without the others")
def relative_to_the_batch(images, keys, severity):
    return (images - images.mean(0) / severity).clip(0, 255).astype(np.uint8)


@breaks("_severities", "mean changes at severity 1 to 5 are")
def one_severity(images, keys, severity):
    return 255 - images


# Partitioners.


@dataclass(frozen=True)
class Numbered(Partitioner):
    """Labels that do not name members of groups."""

    name = "numbered"

    def label(self, features):
        return torch.arange(len(features)).roll(1)


@breaks("_labels", "do not name members")
class NotMembers(Numbered):
    pass


@breaks("_labels_repeat", "when it is called again")
def at_random(features):
    return torch.randint(0, 3, (len(features),))


@breaks("_labels_repeat", "the features have changed")
def in_place(features):
    return (features.abs_().sum(1) > 3).long()


@breaks("_permutation", "in another order")
def by_position(features):
    return torch.arange(len(features)) // 2


@breaks("_poisoned", "shares a group")
@dataclass(frozen=True)
class TakesNaN(Partitioner):
    name = "takes-nan"

    def label(self, features):
        return torch.zeros(len(features), dtype=torch.int64)


@breaks("_poisoned", "other groups without it")
def all_alone_with_nan(features):
    return torch.arange(len(features)) * int(features.isnan().any())


# Datasets.


class Noise(DomainDataset):
    """Nothing is wrong with it."""

    name, domains, classes, image_size = "noise", ("a", "b"), ("x", "y"), (4, 4)

    def labels(self, domain):
        self.check_domain(domain)
        return np.arange(10) % 2

    def images(self, domain, rows):
        return (np.ones((1, 4, 4, 3)) * rows[:, None, None, None]).astype(np.uint8)


@breaks("_names", "classes must be a tuple of distinct names")
class SameClasses(Noise):
    classes = ("x", "x")


@breaks("_names", "labels of 'a' are 0 to 9")
class LabelsBeyond(Noise):
    def labels(self, domain):
        self.check_domain(domain)
        return np.arange(10)


@breaks("_dataset_images", "have shape")
class WrongSize(Noise):
    image_size = (5, 5)


@breaks("_dataset_images", "in another order")
class Sorted(Noise):
    def images(self, domain, rows):
        return super().images(domain, np.sort(rows))


@breaks("_identity", "differ")
class Changing(Noise):
    def images(self, domain, rows):
        return np.random.default_rng().integers(0, 255, (len(rows), 4, 4, 3)).astype(np.uint8)


@breaks("_unknown_domain", "must raise")
class AnyDomain(Noise):
    def labels(self, domain):
        return np.arange(10) % 2
