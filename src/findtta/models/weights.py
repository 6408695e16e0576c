"""Reading and writing weights: safely, and with errors that say what a file really is."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from findtta._io import atomic_write
from findtta.errors import OptionError, few, first_line
from findtta.models.card import ModelCard

State = dict[str, Tensor]

_CARD = "findtta.card"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")


def read_weights(path: str | Path) -> tuple[State, ModelCard | None]:
    """Read a state dict, and the card beside it if there is one.

    Nothing in the file is executed: it is read as safetensors, or by ``torch.load`` with ``weights_only``.

    Args:
        path: A ``.safetensors`` file, or whatever ``torch.save`` wrote.

    Returns:
        The state dict, in float32, and the card.
    """
    path = Path(path)
    if not path.is_file():
        raise OptionError(f"weights must name a file, but {str(path)!r} does not exist.")
    _refuse_text(path)
    state, card = _read_safetensors(path) if path.suffix == ".safetensors" else (_read_torch(path), None)
    low = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in low else value for name, value in _bare(state).items()}, card


def write_weights(path: str | Path, state: Mapping[str, Tensor], card: ModelCard, *, half: bool = False) -> None:
    """Write a state dict with its card as safetensors; the file appears when it is complete.

    Args:
        path: The file to write.
        state: The state dict.
        card: What is known about the model.
        half: Store the weights in half precision; running statistics and counters keep theirs.
    """
    path = Path(path)
    stored = {}
    for name, tensor in state.items():
        is_weight = tensor.is_floating_point() and "running_" not in name
        stored[name] = tensor.detach().cpu().to(torch.float16 if half and is_weight else tensor.dtype).contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        save_file(stored, partial, metadata={_CARD: card.to_json()})


def fit(net: nn.Module, state: State, *, arch: str, source: str) -> None:
    """Load a state dict into a model, or raise an error that says in what way it does not fit."""
    wanted = net.state_dict()
    # Counters do not change a result, and older files lack them.
    missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    surplus = [name for name in state if name not in wanted]
    shapes = [
        f"{name} is {tuple(state[name].shape)} where {tuple(wanted[name].shape)} is expected"
        for name in wanted
        if name in state and state[name].shape != wanted[name].shape
    ]
    found = {"are missing": missing, "belong to no layer": surplus, "have another shape": shapes}
    problems = [f"{len(names)} tensors {what} ({few(names, 3)})" for what, names in found.items() if names]
    if problems:
        raise OptionError(
            f"weights {source!r} do not fit {arch}: {'; '.join(problems)}. "
            "Give the architecture and num_classes that the file was trained with."
        )
    net.load_state_dict(state, strict=False)


def weights_digest(model: nn.Module) -> str:
    """Return a digest of all parameters and buffers of a model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _refuse_text(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not start:
        raise OptionError(f"weights {str(path)!r} is an empty file: fetch it again.")
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise OptionError(
            f"weights {str(path)!r} is an HTML page, not weights: the download gave an error or login page. "
            "Open the address in a browser, and fetch the file itself."
        )
    if start.startswith(b"version https://git-lfs"):
        raise OptionError(f"weights {str(path)!r} is a Git LFS pointer, not weights: run 'git lfs pull'.")


def _read_safetensors(path: Path) -> tuple[State, ModelCard | None]:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            text = (file.metadata() or {}).get(_CARD)
    except SafetensorError as error:
        raise OptionError(f"weights {str(path)!r} is not a safetensors file: {error}") from error
    try:
        return state, ModelCard.from_json(text) if text else None
    except (ValueError, TypeError) as error:  # damaged, or with fields that are not known here
        raise OptionError(
            f"weights {str(path)!r}: its card cannot be read ({error}); is it of a later version?"
        ) from error


def _read_torch(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise OptionError(
            f"weights {str(path)!r} cannot be read as a state dict: {first_line(error)} Only plain tensors are "
            "loaded, never pickled code: save model.state_dict(), best as .safetensors."
        ) from error


def _bare(state: object) -> State:
    """Return the state dict inside the wrappings that training scripts put around it."""
    for name in _WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not (isinstance(state, Mapping) and state and all(isinstance(value, Tensor) for value in state.values())):
        raise OptionError(
            "weights must hold a state dict (names to tensors), "
            f"but hold a {type(state).__name__}: save model.state_dict()."
        )
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in state)
    return {name.removeprefix(prefix) if wrapped else name: tensor for name, tensor in state.items()}
