"""Memory banks of fixed size: the class-balanced reservoir of NOTE and the timely one of RoTTA.

The images live in one tensor on the model's device, allocated once. Which slot holds what is decided
on the host, from labels that are a few bytes per sample, so a batch costs one small transfer and one
indexed copy. Random decisions come from an object, so that recorded draws can be replayed.

The stored items are ordered by class and then by time of arrival; :meth:`MemoryBank.contents` returns them in
this order, and the papers' rules scan them in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from findtta.errors import InputError


class MemoryBank(nn.Module):
    """Holds at most ``capacity`` images, filed under classes."""

    images: Tensor

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

    def order(self) -> list[int]:
        """Return the occupied slots, class after class, the oldest of a class first."""
        return [slot for slots in self.slots_of_class for slot in slots]

    def contents(self) -> Tensor:
        """Return the stored images, ``(items, ...)``, in order."""
        return self.images[torch.tensor(self.order(), dtype=torch.int64, device=self.images.device)]

    def reset(self) -> None:
        """Forget every item, and what shape items have."""
        self.images = self.images.new_empty(0)
        self.slots_of_class: list[list[int]] = []

    def prepare(self, samples: Tensor, num_classes: int) -> None:
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

    def write(self, samples: Tensor, sample_in_slot: dict[int, int]) -> None:
        """Copy samples into slots, all at once."""
        if sample_in_slot:
            device = self.images.device
            slots = torch.tensor(list(sample_in_slot), device=device)
            sources = torch.tensor(list(sample_in_slot.values()), device=device)
            self.images[slots] = samples.detach()[sources].to(self.images.dtype)

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"order": _integers(self.order()), "occupancy": _integers(self.occupancy())}

    def set_extra_state(self, state: Any) -> None:
        slots = iter(state["order"].tolist())
        self.slots_of_class = [[next(slots) for _ in range(count)] for count in state["occupancy"].tolist()]

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
        order: list[int] = torch.randperm(count, generator=self.generator).tolist()
        return order


class BalancedReservoir(MemoryBank):
    """Prediction-balanced reservoir sampling (PBRS) of NOTE.

    Among classes it is balanced by making room in the fullest; within a fullest class it is a
    reservoir, so that every sample of the class seen so far is as likely to be there.
    """

    seen: list[int]

    def insert(self, samples: Tensor, classes: Sequence[int], num_classes: int, draws: ReservoirDraws) -> None:
        """Offer samples, one after the other, under their predicted classes."""
        self.prepare(samples, num_classes)
        self.seen = self.seen or [0] * num_classes
        sample_in_slot: dict[int, int] = {}
        for index, label in enumerate(classes):
            slot = self._make_room(label, draws)
            if slot is not None:
                self.slots_of_class[label].append(slot)
                sample_in_slot[slot] = index
        self.write(samples, sample_in_slot)

    @property
    def offers(self) -> int:
        """How many samples have been offered so far, kept or not."""
        return sum(self.seen)

    def _make_room(self, label: int, draws: ReservoirDraws) -> int | None:
        """Return the slot for a new item of a class, or None if it is not to be kept."""
        self.seen[label] += 1
        occupancy = self.occupancy()
        if sum(occupancy) < self.capacity:
            return sum(occupancy)
        most = max(occupancy)
        fullest = [candidate for candidate, count in enumerate(occupancy) if count == most]
        if label not in fullest:
            shrinking = draws.fullest_class(fullest)
        elif draws.uniform() <= occupancy[label] / self.seen[label]:
            shrinking = label
        else:
            return None
        slots = self.slots_of_class[shrinking]
        return slots.pop(draws.position(len(slots)))

    def reset(self) -> None:
        super().reset()
        self.seen = []

    def get_extra_state(self) -> dict[str, Tensor]:
        return super().get_extra_state() | {"seen": _integers(self.seen)}

    def set_extra_state(self, state: Any) -> None:
        super().set_extra_state(state)
        self.seen = state["seen"].tolist()


class TimelyBank(MemoryBank):
    """Category-balanced sampling with timeliness and uncertainty (CSTU) of RoTTA.

    Every class may hold ``capacity / num_classes`` items, a real number. Where room must be made, the item
    with the highest score goes, unless the new one has a higher one; ``timeliness`` and ``uncertainty`` are the
    weights of age and uncertainty in the score.
    """

    def __init__(self, capacity: int, timeliness: float = 1.0, uncertainty: float = 1.0) -> None:
        super().__init__(capacity)
        self.timeliness_weight = timeliness
        self.uncertainty_weight = uncertainty

    def insert(
        self, samples: Tensor, classes: Sequence[int], uncertainties: Sequence[float], num_classes: int
    ) -> None:
        """Offer samples, one after the other, under their predicted classes."""
        self.prepare(samples, num_classes)
        sample_in_slot: dict[int, int] = {}
        for index, (label, uncertainty) in enumerate(zip(classes, uncertainties, strict=True)):
            slot = self._make_room(label, uncertainty)
            if slot is not None:
                self.slots_of_class[label].append(slot)
                self.offer_of_slot[slot] = self.offers
                self.uncertainty_of_slot[slot] = uncertainty
                sample_in_slot[slot] = index
            self.offers += 1
        self.write(samples, sample_in_slot)

    def _make_room(self, label: int, uncertainty: float) -> int | None:
        """Return the slot for a new item of a class, or None if it is not to be kept."""
        occupancy = self.occupancy()
        if occupancy[label] < self.capacity / len(occupancy):
            if sum(occupancy) < self.capacity:
                return sum(occupancy)
            most = max(occupancy)
            shrinking = [candidate for candidate, count in enumerate(occupancy) if count == most]
        else:
            shrinking = [label]
        worst, worst_score = None, -math.inf
        for candidate in shrinking:
            for slot in self.slots_of_class[candidate]:
                score = self._score(self.offers - self.offer_of_slot[slot], self.uncertainty_of_slot[slot])
                if score >= worst_score:  # of equals, the last
                    worst, worst_score = (candidate, slot), score
        if worst is None or not worst_score > self._score(0, uncertainty):
            return None
        candidate, slot = worst
        self.slots_of_class[candidate].remove(slot)
        return slot

    def _score(self, age: int, uncertainty: float) -> float:
        most_uncertain = math.log(max(len(self.slots_of_class), 2))
        timeliness = 1 / (1 + math.exp(-age / self.capacity))
        return self.timeliness_weight * timeliness + self.uncertainty_weight * uncertainty / most_uncertain

    def ages(self) -> list[int]:
        """Return the age of each item in offers, in the order of :meth:`contents`."""
        return [self.offers - self.offer_of_slot[slot] for slot in self.order()]

    def reset(self) -> None:
        super().reset()
        # All items age by one at every offer: keep the offer an item came with, and nothing to update.
        self.offers = 0
        self.offer_of_slot = [0] * self.capacity
        self.uncertainty_of_slot = [0.0] * self.capacity

    def get_extra_state(self) -> dict[str, Tensor]:
        return super().get_extra_state() | {
            "offers": _integers([self.offers]),
            "offer_of_slot": _integers(self.offer_of_slot),
            "uncertainty_of_slot": torch.tensor(self.uncertainty_of_slot, dtype=torch.float64),
        }

    def set_extra_state(self, state: Any) -> None:
        super().set_extra_state(state)
        self.offers = int(state["offers"])
        self.offer_of_slot = state["offer_of_slot"].tolist()
        self.uncertainty_of_slot = state["uncertainty_of_slot"].tolist()


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
