"""Training of the benchmark's source models: one recipe, resumable."""

from findtta.training.loop import train
from findtta.training.recipe import Recipe, default_recipe

__all__ = ["Recipe", "default_recipe", "train"]
