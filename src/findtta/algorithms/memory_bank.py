"""Memory banks of fixed size: the class-balanced reservoir of NOTE and the timely one of RoTTA.

The images live in one tensor on the model's device, allocated once. Which slot holds what is decided
on the host, from labels that are a few bytes per sample, so a batch costs one small transfer and one
indexed copy. Random decisions come from an object, so that recorded draws can be replayed.

The stored items are ordered by class and then by time of arrival; :meth:`MemoryBank.contents` returns them in
this order, and the papers' rules scan them in it.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from findtta.errors import InputError


class MemoryBank(nn.Module):
    """Holds at most ``capacity`` images, filed under classes; subclasses say which of them to keep."""

    #: Attributes that are saved besides the images, with the values that they start from.
    remembered: ClassVar[Mapping[str, Any]] = {"slots_of_class": [], "offers": 0}

    images: Tensor
    slots_of_class: list[list[int]]
    offers: int  # how many samples have been offered so far, kept or not

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.register_buffer("images", torch.empty(0))
        self.reset()

    def __len__(self) -> int:
        return sum(self.occupancy())

    def occupancy(self) -> list[int]:
        """Return how many items each class has."""
        return [len(slots) for slots in self.slots_of_class]

    def fullest_classes(self) -> list[int]:
        """Return the classes with most items."""
        occupancy = self.occupancy()
        return [label for label, count in enumerate(occupancy) if count == max(occupancy)]

    def order(self) -> list[int]:
        """Return the occupied slots, class after class, the oldest of a class first."""
        return [slot for slots in self.slots_of_class for slot in slots]

    def contents(self) -> Tensor:
        """Return the stored images, ``(items, ...)``, in order."""
        return self.images[self.order()]

    def insert(
        self, samples: Tensor, classes: Sequence[int], uncertainties: Sequence[float], num_classes: int
    ) -> None:
        """Offer samples, one after the other, under their predicted classes."""
        self._prepare(samples, num_classes)
        sample_in_slot: dict[int, int] = {}
        for index, (label, uncertainty) in enumerate(zip(classes, uncertainties, strict=True)):
            slot = self.make_room(label, uncertainty)
            if slot is not None:
                self.slots_of_class[label].append(slot)
                sample_in_slot[slot] = index
            self.offers += 1
        if sample_in_slot:
            kept = samples.detach()[list(sample_in_slot.values())]
            self.images[list(sample_in_slot)] = kept.to(self.images.dtype)

    def make_room(self, label: int, uncertainty: float) -> int | None:
        """Return the slot for a new item of a class, or None if it is not to be kept."""
        raise NotImplementedError

    def _prepare(self, samples: Tensor, num_classes: int) -> None:
        """Allocate the bank at the first samples, and refuse samples that do not fit it later."""
        if not self.slots_of_class:
            self.slots_of_class = [[] for _ in range(num_classes)]
            # Never an inference tensor: the memory is trained on later.
            with torch.inference_mode(False):
                self.images = torch.zeros(
                    (self.capacity, *samples.shape[1:]), dtype=samples.dtype, device=samples.device
                )
        if samples.shape[1:] != self.images.shape[1:] or num_classes != len(self.slots_of_class):
            raise InputError(
                f"inputs must keep the shape {tuple(self.images.shape[1:])} and the model its "
                f"{len(self.slots_of_class)} classes, because a memory of past inputs is kept, got "
                f"{tuple(samples.shape[1:])} and {num_classes}. Call reset() before a different stream."
            )

    def reset(self) -> None:
        """Forget every item, and what shape items have."""
        self.images = self.images.new_empty(0)
        self.set_extra_state(self.remembered)

    def get_extra_state(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self.remembered}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        for name in self.remembered:
            setattr(self, name, copy.deepcopy(state[name]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.get(f"{prefix}images")
        if stored is not None and (stored.shape, stored.dtype) != (self.images.shape, self.images.dtype):
            with torch.inference_mode(False):
                self.images = torch.empty(stored.shape, dtype=stored.dtype, device=self.images.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ReservoirDraws:
    """The random decisions about a :class:`BalancedReservoir`, all uniform, from a generator on the CPU."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def fullest_class(self, classes: Sequence[int]) -> int:
        """Pick one of the classes with most items."""
        return classes[self.position(len(classes))]

    def position(self, count: int) -> int:
        """Pick one of ``count`` items of a class, counted from the oldest."""
        return int(torch.randint(count, (), generator=self.generator))

    def uniform(self) -> float:
        """Pick a number from 0 to 1."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))

    def permutation(self, count: int) -> Sequence[int]:
        """Pick an order of ``count`` items."""
        return torch.randperm(count, generator=self.generator).tolist()


class BalancedReservoir(MemoryBank):
    """Prediction-balanced reservoir sampling (PBRS) of NOTE.

    Among classes it is balanced by making room in the fullest; within a fullest class it is a
    reservoir, so that every sample of the class seen so far is as likely to be there.
    """

    remembered: ClassVar[Mapping[str, Any]] = {**MemoryBank.remembered, "seen": {}}

    seen: dict[int, int]  # how many samples of a class have been offered

    def __init__(self, capacity: int, draws: ReservoirDraws) -> None:
        super().__init__(capacity)
        #: Where random decisions come from; replace it to replay recorded ones.
        self.draws = draws

    def make_room(self, label: int, uncertainty: float) -> int | None:
        self.seen[label] = self.seen.get(label, 0) + 1
        if len(self) < self.capacity:
            return len(self)
        fullest = self.fullest_classes()
        if label not in fullest:
            shrinking = self.draws.fullest_class(fullest)
        elif self.draws.uniform() <= len(self.slots_of_class[label]) / self.seen[label]:
            shrinking = label
        else:
            return None
        slots = self.slots_of_class[shrinking]
        return slots.pop(self.draws.position(len(slots)))


class TimelyBank(MemoryBank):
    """Category-balanced sampling with timeliness and uncertainty (CSTU) of RoTTA.

    Every class may hold ``capacity / num_classes`` items, a real number. Where room must be made, the item
    with the highest score goes, unless the new one has a higher one; ``timeliness`` and ``uncertainty`` are the
    weights of age and uncertainty in the score.
    """

    # All items age by one at every offer: keep the offer an item came with, and nothing to update.
    remembered: ClassVar[Mapping[str, Any]] = {
        **MemoryBank.remembered,
        "offer_of_slot": {},
        "uncertainty_of_slot": {},
    }

    offer_of_slot: dict[int, int]
    uncertainty_of_slot: dict[int, float]

    def __init__(self, capacity: int, timeliness: float = 1.0, uncertainty: float = 1.0) -> None:
        super().__init__(capacity)
        self.timeliness_weight = timeliness
        self.uncertainty_weight = uncertainty

    def make_room(self, label: int, uncertainty: float) -> int | None:
        slot: int | None = len(self)
        if len(self.slots_of_class[label]) >= self.capacity / len(self.slots_of_class):
            slot = self._take_worst([label], uncertainty)
        elif slot == self.capacity:
            slot = self._take_worst(self.fullest_classes(), uncertainty)
        if slot is not None:
            self.offer_of_slot[slot] = self.offers
            self.uncertainty_of_slot[slot] = uncertainty
        return slot

    def _take_worst(self, classes: Sequence[int], uncertainty: float) -> int | None:
        """Take out the item of some classes with the highest score, unless a new one has a higher one."""
        items = [(label, slot) for label in classes for slot in self.slots_of_class[label]]
        # Of equals, the last.
        score, last = max(
            (self._score(self.offers - self.offer_of_slot[slot], self.uncertainty_of_slot[slot]), index)
            for index, (_, slot) in enumerate(items)
        )
        if score <= self._score(0, uncertainty):
            return None
        label, slot = items[last]
        self.slots_of_class[label].remove(slot)
        return slot

    def _score(self, age: int, uncertainty: float) -> float:
        most_uncertain = math.log(max(len(self.slots_of_class), 2))
        timeliness = 1 / (1 + math.exp(-age / self.capacity))
        return self.timeliness_weight * timeliness + self.uncertainty_weight * uncertainty / most_uncertain

    def ages(self) -> list[int]:
        """Return the age of each item in offers, in the order of :meth:`contents`."""
        return [self.offers - self.offer_of_slot[slot] for slot in self.order()]
