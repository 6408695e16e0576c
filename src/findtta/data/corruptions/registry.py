"""Every corruption by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from findtta.data.corruptions import blur, digital, noise, spatter, weather
from findtta.data.dataset import Images

#: Each takes uint8 images, their random numbers and the constants of a severity.
CORRUPTIONS: Mapping[str, Callable[..., Images]] = MappingProxyType(
    {
        "gaussian_noise": noise.gaussian_noise,
        "shot_noise": noise.shot_noise,
        "impulse_noise": noise.impulse_noise,
        "defocus_blur": blur.defocus_blur,
        "glass_blur": blur.glass_blur,
        "motion_blur": blur.motion_blur,
        "zoom_blur": blur.zoom_blur,
        "snow": weather.snow,
        "frost": weather.frost,
        "fog": weather.fog,
        "brightness": digital.brightness,
        "contrast": digital.contrast,
        "elastic_transform": digital.elastic_transform,
        "pixelate": digital.pixelate,
        "jpeg_compression": digital.jpeg_compression,
        "speckle_noise": noise.speckle_noise,
        "gaussian_blur": blur.gaussian_blur,
        "spatter": spatter.spatter,
        "saturate": digital.saturate,
    }
)
