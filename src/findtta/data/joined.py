"""Several datasets as one, so that a stream can mix them."""

from collections.abc import Sequence

from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows, match_classes
from findtta.errors import InputError


class JoinedDataset(DomainDataset):
    """The domains of several datasets under the classes of the first, matched by name.

    Domains keep their names unless an earlier dataset has taken them: then a clean set is a domain with the name
    of its dataset, and another domain is called ``"dataset/domain"``.
    """

    def __init__(self, parts: Sequence[DomainDataset]) -> None:
        first = parts[0]
        self.parts = (first, *(self._matched(part, first) for part in parts[1:]))
        self.name = "+".join(part.name for part in parts)
        self.classes, self.image_size, self.preprocessing = first.classes, first.image_size, first.preprocessing
        self.generated = any(part.generated for part in parts)
        self.encoded = any(part.encoded for part in parts)
        self._places: dict[str, tuple[DomainDataset, str]] = {}
        for part in self.parts:
            for domain in part.domains:
                name = domain
                if name in self._places:
                    name = part.name if part.domains == (CLEAN,) else f"{part.name}/{domain}"
                if name in self._places:
                    raise InputError(f"data: two of the joined datasets are called {part.name!r}; rename one.")
                self._places[name] = part, domain
        self.domains = tuple(self._places)

    @staticmethod
    def _matched(part: DomainDataset, first: DomainDataset) -> DomainDataset:
        if part.image_size != first.image_size:
            raise InputError(
                f"data: joined datasets must have images of one size, got {first.image_size} for {first.name!r} "
                f"and {part.image_size} for {part.name!r}."
            )
        other = f"the data {first.name!r}"
        return match_classes(part, first.classes, len(first.classes), other=other)[0]

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        part, own = self._places[domain]
        return part.labels(own)

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        part, own = self._places[domain]
        return part.images(own, rows)

    def extended(self, kinds: Sequence[str]) -> DomainDataset:
        first = self.parts[0].extended(kinds)
        return self if first is self.parts[0] else JoinedDataset([first, *self.parts[1:]])
