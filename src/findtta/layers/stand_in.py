"""A module in the place of another, with the attributes and the state dict keys of the one it replaced."""

import threading
from typing import Any, ClassVar, Self

from torch import Tensor, nn

OWN = "adaptation."  # where the state dict keeps what the original module does not have


class StandIn(nn.Module):
    """Takes the place of another module, which it keeps as a submodule.

    Attributes of the original can be read as if they were its own. Its state dict has the original's keys, so
    that checkpoints of the source model can be loaded and saved; what it keeps besides is below ``adaptation``.
    """

    #: Name of the submodule that holds the original.
    original: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_rename_saved)  # type: ignore[no-untyped-call]
        #: Whether the state dict loaded last had a state of its own, and not only the original's.
        self.loaded_own_state = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        given = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
        own = {key: value for key, value in given.items() if key.startswith(prefix + OWN)}
        self.loaded_own_state = bool(own)
        if not own:  # a state of the original alone: ours stays as it is
            present: dict[str, Any] = self.state_dict(prefix=prefix)
            own = {key: value for key, value in present.items() if key.startswith(prefix + OWN)}
        state_dict |= {prefix + key.removeprefix(prefix + OWN): value for key, value in own.items()}
        inner = f"{prefix}{self.original}."
        state_dict |= {inner + key.removeprefix(prefix): given[key] for key in given if key not in own}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if self.original not in self.__dict__.get("_modules", ()):
                raise
            return getattr(self._modules[self.original], name)


def _rename_saved(module: StandIn, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    saved = {key: state.pop(key) for key in list(state) if key.startswith(prefix)}
    inner = f"{prefix}{module.original}."
    for key, value in saved.items():
        if key.startswith(inner):
            state[prefix + key.removeprefix(inner)] = value
        else:
            state[prefix + OWN + key.removeprefix(prefix)] = value


class NotCopied:
    """Mixin for what belongs to one module object: a copy of the module gets a new one."""

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class CallState(NotCopied, threading.local):
    """What one call of an adapted model keeps, shared by all its layers and separate for every thread.

    Attributes:
        carried: What layers hand on to later layers of the same call; None outside of a call.
        may_overwrite: Whether layers may write over inputs that nothing else reads. Only while the adapted model's
            own forward runs: a user who calls submodules, or a hook, may keep what passes by.
        records: What each layer recorded in the last call, for reports; a layer that did not run has no entry.
        returned: What a compiled graph returns beside its result: the number of a layer, and what it recorded.
    """

    def __init__(self) -> None:
        self.carried: dict[str, Any] | None = None
        self.may_overwrite = False
        self.records: dict[nn.Module, dict[str, Tensor]] = {}
        self.returned: list[tuple[int, dict[str, Tensor]]] | None = None

    def begin(self, *, may_overwrite: bool = False) -> None:
        """Begin a call."""
        self.carried = {}
        self.may_overwrite = may_overwrite

    def end(self) -> None:
        """End the call; its records stay."""
        self.carried = None
        self.may_overwrite = False


class CallLock(NotCopied):
    """Lets one thread after the other call a model that learns from its batches."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()
