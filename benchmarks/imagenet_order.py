"""Do corruptions at 224 px hurt a model in the order that is published?

Takes photos (an npz with ``jpeg``, ``offsets`` and ``labels``, or any set that ``findtta.data.load`` opens)
and a model, corrupts the photos with the ImageNet constants at severity 5, and compares the accuracies with
those of torchvision's first ResNet-50, which papers on the corruption benchmark report: by their rank correlation,
since weights and photos differ.

    python benchmarks/imagenet_order.py --data photos.npz --model resnet50-caffe --weights resnet50.pt --images 60
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from tqdm.auto import tqdm

import findtta
from findtta.images import to_input
from findtta.tables import render

#: Accuracy in per cent of torchvision's ResNet-50 (V1 weights) at severity 5: 100 minus the errors of "R-50 (BN)"
#: in the README of EATA's authors (github.com/mr-eggplant/EATA).
PUBLISHED = {
    "gaussian_noise": 2.2, "shot_noise": 2.9, "impulse_noise": 1.8, "defocus_blur": 17.9, "glass_blur": 9.8,
    "motion_blur": 14.8, "zoom_blur": 22.5, "snow": 16.9, "frost": 23.3, "fog": 24.4, "brightness": 58.9,
    "contrast": 5.4, "elastic_transform": 16.9, "pixelate": 20.6, "jpeg_compression": 31.6,
}  # fmt: skip


def main() -> None:
    """Print both columns and their rank correlation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="resnet50-caffe")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", type=int, default=60)
    arguments = parser.parse_args()
    data = findtta.data.load(arguments.data)
    model = findtta.models.load(arguments.model, weights=arguments.weights, num_classes=len(data.classes))
    part = data.pick(["clean", *PUBLISHED], limit=arguments.images)
    accuracies = {}
    for domain in tqdm(part.domains):
        labels = part.labels(domain)
        right = 0
        for rows in np.array_split(np.arange(len(labels)), max(1, len(labels) // 20)):
            with torch.inference_mode():
                guesses = model(to_input(part.images(domain, rows))).argmax(1).numpy()
            right += int((guesses == labels[rows]).sum())
        accuracies[domain.partition("@")[0]] = 100 * right / len(labels)
    lines = [(name, accuracy, PUBLISHED.get(name)) for name, accuracy in accuracies.items()]
    print(render(("corruption", "ours", "published"), lines))
    ours = np.array([accuracies[name] for name in PUBLISHED])
    published = np.array(list(PUBLISHED.values()))
    correlation = rank_correlation(ours, published)
    print(f"\nrank correlation {correlation:.2f}; mean {ours.mean():.1f}, {published.mean():.1f}")


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation; ties share their mean rank."""
    ranks = [np.array([(x < value).sum() + ((x == value).sum() - 1) / 2 for value in x]) for x in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


if __name__ == "__main__":
    main()
