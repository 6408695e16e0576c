"""Small datasets on disk, in every layout that can be read."""

import io
import pickle
import tarfile

import numpy as np
from PIL import Image

from findtta.data.dataset import CLEAN, DomainDataset

SIDE = 32


def pictures(count, seed=0, side=SIDE):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def rows(*numbers):
    return np.array(numbers, dtype=np.int64)


class InMemory(DomainDataset):
    """A clean set of random pixels."""

    def __init__(self, count=10, classes=("cat", "dog", "owl"), side=SIDE, name="tiny"):
        self.name, self.domains, self.classes, self.image_size = name, (CLEAN,), tuple(classes), (side, side)
        self.pixels, self.truth = pictures(count, side=side), np.arange(count) % len(classes)

    def labels(self, domain):
        return self.truth

    def images(self, domain, rows):
        return self.pixels[rows]


def write_cifar_c(folder, corruptions=("fog", "gaussian_noise"), count=4, labels_for=5):
    """Write the published layout; returns the images of each corruption."""
    folder.mkdir(parents=True)
    arrays = {name: pictures(5 * count, seed) for seed, name in enumerate(corruptions)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(np.arange(count, dtype=np.uint8) % 3, labels_for))
    return arrays


def cifar_pickles(variant="cifar10", count=6, protocol=2):
    """Return the published files by name, and the images and labels of the test split."""
    files, truth = {}, {}
    names = {"cifar10": ["test_batch", *(f"data_batch_{n}" for n in range(1, 6))], "cifar100": ["test", "train"]}
    label_key, meta, class_key, classes = {
        "cifar10": (b"labels", "batches.meta", b"label_names", [b"cat", b"dog", b"owl"]),
        "cifar100": (b"fine_labels", "meta", b"fine_label_names", [b"ant", b"bee", b"cow"]),
    }[variant]
    for seed, name in enumerate(names[variant]):
        images = pictures(count, seed)
        labels = [(row + seed) % 3 for row in range(count)]
        table = {b"data": images.transpose(0, 3, 1, 2).reshape(count, -1), label_key: labels, b"batch_label": b"x"}
        files[name] = pickle.dumps(table, protocol)
        truth[name] = images, labels
    files[meta] = pickle.dumps({class_key: classes}, protocol)
    return files, truth


def write_files(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def tar_bytes(files, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_images(folder, names, side=SIDE, seed=0, suffix=".png"):
    """Write one image per name, such as "sketch/cat/1"; returns them by name."""
    images = dict(zip(names, pictures(len(names), seed, side), strict=True))
    for name, image in images.items():
        path = folder / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return images
