"""Training: a kill only pauses it, and the card tells the truth."""

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from findtta.cli.main import main
from findtta.data.corrupted import CorruptedDataset
from findtta.data.shapes import Shapes
from findtta.errors import OptionError
from findtta.models import build, load, weights_digest
from findtta.models.check import accuracy_by_domain, clean_accuracy
from findtta.train import Augmented, DrawnShapes, Recipe, _optimizer, _step, crop, default_recipe, train

RECIPE = Recipe(epochs=2, batch_size=16, images_per_epoch=64, learning_rate=0.05)


def fresh(arch="resnet20"):
    torch.manual_seed(0)
    return build(arch, num_classes=10, normalization="half")


def run(out, recipe=RECIPE, source=None, **options):
    source = source or DrawnShapes(recipe.images_per_epoch, recipe.seed, 1)
    return train(fresh(), source, Shapes(40), out, recipe, progress=False, test_images=40, **options)


class Killed(Exception):
    pass


class Dying(DrawnShapes):
    """A source that dies after some batches, like a process that is killed."""

    def __init__(self, *arguments, after):
        super().__init__(*arguments)
        self.left = after

    def batch(self, epoch, positions):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().batch(epoch, positions)


@pytest.mark.parametrize("after", [3, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 7))])
def test_a_killed_training_ends_with_the_same_weights(tmp_path, after):
    expected = run(tmp_path / "whole.safetensors")
    out = tmp_path / "killed.safetensors"
    with pytest.raises(Killed):
        run(out, source=Dying(64, 0, 1, after=after), checkpoint_every=0)
    assert not out.exists()
    counted = Dying(64, 0, 1, after=100)
    resumed = run(out, source=counted, checkpoint_every=0)
    assert 100 - counted.left == 8 - after, "finished steps are not repeated"
    assert weights_digest(resumed) == weights_digest(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.safetensors", "whole.safetensors"]


def test_the_card_says_what_the_file_is(tmp_path):
    out = tmp_path / "net.safetensors"
    model = run(out, half=True, corrupted_images=16)
    loaded = load("resnet20", weights=out)
    assert weights_digest(loaded) == weights_digest(model)
    right, count = clean_accuracy(loaded, Shapes(40), 40)
    assert (loaded.card.clean_accuracy, loaded.card.clean_images) == (100 * right / count, 40)
    assert loaded.card.classes == Shapes().classes
    assert loaded.card.recipe["epochs"] == 2
    fifteen = CorruptedDataset(Shapes(40)).pick(limit=16)
    assert loaded.card.corrupted_accuracy == accuracy_by_domain(loaded, fifteen)
    assert set(loaded.card.corrupted_accuracy) == set(fifteen.domains)
    assert loaded.card.corrupted_images == 16
    assert loaded.card.mean == (0.5, 0.5, 0.5)


def test_a_checkpoint_of_other_settings_or_a_broken_one_is_not_used(tmp_path):
    out = tmp_path / "net.safetensors"
    with pytest.raises(Killed):
        run(out, source=Dying(64, 0, 1, after=3), checkpoint_every=0)
    with pytest.raises(OptionError, match="other settings"):
        run(out, Recipe(epochs=3, batch_size=16, images_per_epoch=64))
    with pytest.raises(OptionError, match="other settings or data"):
        run(out, source=DrawnShapes(64, 1, 1))
    out.with_suffix(".checkpoint").write_bytes(b"half a file")
    with pytest.raises(OptionError, match="delete it to start again"):
        run(out)


def test_a_training_may_start_from_trained_weights_and_says_so(tmp_path):
    first = run(tmp_path / "first.safetensors")
    # Without a learning rate to speak of, the trained weights are those that it began with.
    recipe = replace(RECIPE, start_from=str(tmp_path / "first.safetensors"), learning_rate=1e-12, weight_decay=0.0)
    out = tmp_path / "second.safetensors"
    with pytest.raises(Killed):
        run(out, recipe, source=Dying(64, 0, 1, after=3), checkpoint_every=0)
    (tmp_path / "first.safetensors").rename(tmp_path / "elsewhere.safetensors")
    second = run(out, recipe)  # continued from its checkpoint, which needs the first weights no more
    told = load(str(out)).card.recipe
    assert (told["start_from"], told["before"]) == ("first.safetensors", first.card.recipe)
    for (name, before), after in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.allclose(before, after, atol=1e-6), name
    with pytest.raises(OptionError, match="does not exist"):
        run(tmp_path / "third.safetensors", recipe)
    with pytest.raises(OptionError, match="'shapes-resnet26' do not fit resnet20"):
        run(tmp_path / "third.safetensors", replace(RECIPE, start_from="shapes-resnet26"))


def test_a_few_steps_learn_something():
    recipe = Recipe(epochs=1, batch_size=32, learning_rate=0.03, images_per_epoch=320, warmup=0.0)
    model, source = fresh(), DrawnShapes(320, 0, 1000)
    optimizer = _optimizer(model, recipe)

    rows = np.arange(32)
    losses = [_step(model, optimizer, *source.batch(0, rows), recipe, 0.1).item() for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]


def test_the_rate_rises_and_falls_to_nothing():
    recipe = Recipe(learning_rate=0.4, warmup=0.25)
    rates = [recipe.rate(progress) for progress in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(0.4)
    assert int(np.argmax(rates)) == 25
    assert 0 < rates[0] < 0.01
    assert rates[-1] == pytest.approx(0, abs=1e-12)


def test_norms_and_biases_are_not_decayed():
    model = fresh()
    decayed, plain = _optimizer(model, RECIPE).param_groups
    assert decayed["weight_decay"] == RECIPE.weight_decay
    assert plain["weight_decay"] == 0
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_crops_and_mirrors_by_hand():
    image = np.arange(1, 4 * 4 * 3 + 1, dtype=np.uint8).reshape(1, 4, 4, 3)
    padded = np.zeros((6, 6, 3), np.uint8)
    padded[1:5, 1:5] = image[0]
    for top, left, mirrored in [(0, 0, False), (2, 1, False), (1, 2, True)]:
        cut = crop(image, np.array([top]), np.array([left]), np.array([mirrored]), pad=1)[0]
        expected = padded[top : top + 4, left : left + 4]
        assert np.array_equal(cut, expected[:, ::-1] if mirrored else expected)


def test_augmentation_differs_by_epoch_and_not_by_batch():
    source = Augmented(Shapes(50), seed=0)
    rows = np.arange(20)
    first, labels = source.batch(0, rows)
    assert np.array_equal(first[5:9], source.batch(0, rows[5:9])[0])
    assert not np.array_equal(first, source.batch(1, rows)[0])
    assert np.array_equal(labels, Shapes(50).labels()[rows])


def test_drawn_shapes_are_fresh_every_epoch_and_begin_plain():
    source = DrawnShapes(10, 0, 2)
    rows = np.arange(10)
    assert not np.array_equal(source.batch(2, rows)[0], source.batch(3, rows)[0])
    colours = [len(np.unique(source.batch(epoch, rows)[0])) for epoch in (0, 2)]
    assert colours[0] < colours[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"warmup": 1.0}, "warmup"),
        ({"first_size": 0.0}, "first_size"),
        ({"optimizer": "lamb"}, "'sgd' or 'adamw'"),
        ({"precision": "int8"}, "precision"),
    ],
)
def test_wrong_recipes(settings, message):
    with pytest.raises(OptionError, match=message):
        default_recipe("shapes", "resnet26", **settings)


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(OptionError, match="batch_size must be at most the 64"):
        run(tmp_path / "net.safetensors", Recipe(batch_size=65, images_per_epoch=64))


def test_transformers_get_their_own_optimizer():
    assert default_recipe("shapes", "efficientvit_m0").optimizer == "adamw"
    assert default_recipe("cifar10", "resnet26").epochs == 150


def test_the_command_trains_and_refuses_to_overwrite(tmp_path, capsys):
    out = tmp_path / "net.safetensors"
    command = [
        "train",
        "shapes",
        "--arch",
        "resnet20",
        "--output",
        str(out),
        "--epochs",
        "1",
        "--images-per-epoch",
        "32",
    ]
    few = ["--test-images", "50", "--corrupted-images", "4"]
    assert main([*command, *few, "--batch-size", "16", "--threads", "1"]) == 0
    assert "clean test images" in capsys.readouterr().out
    assert load("resnet20", weights=out).card.clean_images == 50
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["train", "shapes", "--output", str(tmp_path / "net.pt")]) == 2
    assert "must end in .safetensors" in capsys.readouterr().err
    assert main(["train", "shapes", "--source", "x", "--output", str(tmp_path / "n.safetensors")]) == 2
    assert "drawn by code" in capsys.readouterr().err


def test_training_on_folders_of_images_says_which_dataset_they_are(tmp_path, capsys):
    random = np.random.default_rng(0)
    for split, count in (("train", 3), ("test", 2)):
        for label in range(10):
            folder = tmp_path / "copy" / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                image = random.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(image).save(folder / f"{number}.png")
    out = tmp_path / "net.safetensors"
    command = ["train", "cifar10", "--source", str(tmp_path / "copy"), "--arch", "resnet20", "-o", str(out)]
    few = ["--epochs", "1", "--batch-size", "10", "--corrupted-images", "1", "--threads", "1"]
    assert main([*command, *few]) == 0
    card = load(str(out)).card
    assert (card.trained_on, card.clean_images, card.classes[0]) == ("cifar10", 20, "class0")


@pytest.mark.slow
def test_a_real_kill_leaves_a_checkpoint_that_goes_on(tmp_path):
    """The process is killed outright, with no chance to tidy up."""
    script = f"""
import torch
torch.set_num_threads(1)
from findtta.data.corrupted import CorruptedDataset
from findtta.data.shapes import Shapes
from findtta.models import build
from findtta.train import DrawnShapes, Recipe, train
torch.manual_seed(0)
model = build("resnet20", num_classes=10, normalization="half")
recipe = Recipe(epochs=200, batch_size=16, images_per_epoch=64, learning_rate=0.05)
train(model, DrawnShapes(64, 0, 1), Shapes(40), {str(tmp_path / "net.safetensors")!r}, recipe, progress=False,
      checkpoint_every=0)
"""
    checkpoint = tmp_path / "net.checkpoint"
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert torch.load(checkpoint, weights_only=True)["step"] >= 1


def test_images_grow_to_their_full_side():
    recipe = Recipe(first_size=0.5)
    sides = [recipe.side(progress, 32) for progress in np.linspace(0, 1, 301)]
    assert sides == sorted(sides)
    assert sides[0] == 16
    assert set(sides) == {16, 20, 24, 28, 32}
    assert min(np.linspace(0, 1, 301)[np.array(sides) == 32]) < 2 / 3
    assert {Recipe().side(progress, 30) for progress in (0.0, 0.5, 1.0)} == {30}


def test_a_model_trains_on_images_that_grow(tmp_path):
    sizes = []
    model = fresh()
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(inputs[0].shape[-1]))
    source = Augmented(Shapes(64), seed=0)
    recipe = Recipe(epochs=3, batch_size=32, first_size=0.5)
    train(model, source, Shapes(8), tmp_path / "net.safetensors", recipe, progress=False)
    assert sizes[:6] == [16, 20, 24, 28, 32, 32]
