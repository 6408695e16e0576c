"""Drift made on the fly: a clean set under every corruption at every severity."""

from __future__ import annotations

from findtta.data.corruptions import TABLES, corrupt
from findtta.data.dataset import (
    CLEAN,
    EXTRA_CORRUPTIONS,
    MAIN_CORRUPTIONS,
    SEVERITIES,
    DomainDataset,
    Images,
    Labels,
    Rows,
    domain_name,
    split_domain,
)
from findtta.errors import OptionError, UnknownNameError, close_matches


class CorruptedDataset(DomainDataset):
    """A clean set as ``"clean"`` and under 19 corruptions at 5 severities.

    The corruption of an image depends on the seed and on its row only, not on the batch it is asked for in.

    Args:
        clean: The set to corrupt; it must have the domain ``"clean"``.
        seed: Seed of everything random in the corruptions.
        constants: Strengths of the corruptions, ``"cifar"`` or ``"imagenet"``; by default by image size.
    """

    def __init__(self, clean: DomainDataset, seed: int = 0, constants: str | None = None) -> None:
        if CLEAN not in clean.domains:
            raise OptionError(
                f"clean must be a dataset with the domain {CLEAN!r}, but {clean.name} has "
                f"{', '.join(clean.domains[:5])}."
            )
        if constants is not None and constants not in TABLES:
            raise UnknownNameError(
                f"constants must be one of {', '.join(TABLES)}, got {constants!r}."
                f"{close_matches(constants, TABLES)}"
            )
        self.clean, self.seed, self.constants = clean, seed, constants
        self.name = f"{clean.name}-c (generated)"
        self.domains = (
            CLEAN,
            *(
                domain_name(kind, severity)
                for kind in (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)
                for severity in SEVERITIES
            ),
        )
        self.classes, self.image_size = clean.classes, clean.image_size
        self.generated, self.preprocessing = True, clean.preprocessing

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self.clean.labels(CLEAN)

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        images = self.clean.images(CLEAN, rows)
        kind, severity = split_domain(domain)
        if severity is None:
            return images
        return corrupt(images, kind, severity, seed=self.seed, index=rows, constants=self.constants)
