"""What methods that learn during the stream have in common.

They train the affine parameters of the BatchNorm layers, in a copy of the user's model, with one
optimizer that lives as long as the stream. A method says how it learns from one batch
(:meth:`GradientAdapted.learn`); everything else is here: a safe optimizer step, reset, saving.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted, Cost, require_logits
from findtta.algorithms.memory_bank import MemoryBank
from findtta.algorithms.moving import MovingStatistics, moving_statistics
from findtta.algorithms.presets import GradientOptions
from findtta.algorithms.tbn import BatchStatisticsNorm
from findtta.collapse import Collapse, CollapseGuard
from findtta.errors import InputError, OptionError, SkippedUpdateWarning, UnsupportedModelError
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import Options


class Snapshot(nn.Module):
    """A copy of tensors, kept as buffers, so that it is saved and moved with its parent."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        for index, tensor in enumerate(tensors):
            self.register_buffer(str(index), tensor.detach().clone())

    @torch.no_grad()
    def copy_to(self, tensors: Iterable[Tensor]) -> None:
        """Write the kept values into ``tensors``, given in the order in which they were kept."""
        for kept, tensor in zip(self.buffers(), tensors, strict=True):
            tensor.copy_(kept)


class Generator(torch.Generator):
    """Random numbers on the CPU, so that draws are the same on every device; can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As an array: the memory of a tensor that only exists for pickling is gone when a process looks for it.
        return Generator, (), self.get_state().numpy()

    def __setstate__(self, state: Any) -> None:
        self.set_state(torch.from_numpy(state.copy()))


class GradientAdapted(Adapted):
    """A model that learns from every batch it is given.

    Subclasses define :meth:`learn`; those that keep more than parameters and moving statistics name it in
    ``remembered``, or create it in :meth:`prepare` and extend :meth:`changing` (tensors), or
    :meth:`get_extra_state` and :meth:`set_extra_state` (anything else), and :meth:`reset`.
    """

    options_type: ClassVar[type[Options]] = GradientOptions
    stateful = True
    needs_grad = True
    exportable = False
    passes = Cost(forward=1, backward=1)
    #: Attributes that learning changes and that are saved, with the values that they start from.
    remembered: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, model: nn.Module, options: Options, *, reuse_buffers: bool = True) -> None:
        super().__init__(model, options, reuse_buffers=reuse_buffers)
        self.required_grad = {name: p.requires_grad for name, p in self.model.named_parameters()}
        self.model.requires_grad_(False)
        learner = self.make_learner()
        trained = [learner.get_parameter(name) for name in self.trained_names]
        for parameter in trained:
            parameter.requires_grad_(True)
        self.optimizer = self.make_optimizer(trained)
        self.source = Snapshot(self.changing(self.model))

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        if any(parameter.is_inference() for parameter in model.parameters()):
            raise UnsupportedModelError(
                f"model ({type(model).__name__}) has parameters made in inference mode, which cannot be trained: "
                "build, load and adapt the model outside torch.inference_mode()."
            )
        self.options = self.options.resolve(model)
        #: Names of the parameters that are trained, in the order of the optimizer.
        self.trained_names = self.parameters_to_train(model, sites)
        if not self.trained_names:
            raise UnsupportedModelError(
                f"model ({type(model).__name__}) has no BatchNorm layer with a trainable weight or bias that "
                f"method {self.name!r} may change (skip_layers={self.options.skip_layers!r})."
            )
        #: Random numbers of the methods that draw.
        self.generator = Generator()
        self.guard = CollapseGuard()
        self.warned = False  # about the current batch: one warning is enough
        self._begin_stream()

    # For methods to define.

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return BatchStatisticsNorm(norm)

    def learn(self, inputs: Tensor) -> Tensor:
        """Learn from a batch, ``(B, ...)``, and return its logits from before the update, ``(B, K)``.

        Gradients are enabled, and the inputs are finite and not empty.
        """
        raise NotImplementedError

    def predict(self, inputs: Tensor) -> Tensor:
        """Predict a batch without learning from it."""
        with torch.no_grad():
            return self.logits(inputs)

    def parameters_to_train(self, model: nn.Module, sites: Sequence[NormSite]) -> list[str]:
        """Return the names of the parameters to train: by default weights and biases of BatchNorm layers."""
        # By parameter first: layers may share one, and an optimizer must not get it twice.
        names = {
            parameter: f"{site.name}.{part}"
            for site in sites
            if not any(skipped in site.name for skipped in self.options.skip_layers)
            for part, parameter in site.module.named_parameters(recurse=False)
            if part in ("weight", "bias")
        }
        return list(names.values())

    def make_learner(self) -> nn.Module:
        """Return the module whose parameters are trained: by default the model itself."""
        return self.model

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimizer the options ask for."""
        options = self.options
        common = {"lr": options.lr, "weight_decay": options.weight_decay}
        if options.optimizer == "adam":
            return torch.optim.Adam(parameters, betas=(float(options.momentum), 0.999), **common)
        return torch.optim.SGD(parameters, momentum=options.momentum, nesterov=options.nesterov, **common)

    def changing(self, replica: nn.Module) -> list[Tensor]:
        """List every tensor that learning changes in the model or in the learner, always in the same order."""
        trained: list[Tensor] = [replica.get_parameter(name) for name in self.trained_names]
        return trained + [tensor for moving in moving_statistics(replica) for tensor in moving.buffers()]

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state besides tensors of the model, to be saved (plain types and tensors)."""
        remembered = {name: getattr(self, name) for name in self.remembered}
        return {"optimizer": self.optimizer.state_dict(), "generator": self.generator.get_state(), **remembered}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`get_extra_state` returned."""
        state = copy.deepcopy(state)  # loading must not tie two models together
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        for name in self.remembered:
            setattr(self, name, state[name])

    # For methods to use.

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return dict(zip(self.trained_names, parameters, strict=True))

    def logits(self, inputs: Tensor) -> Tensor:
        """Run the model on a batch, and raise unless it returns logits."""
        logits = require_logits(self.run(inputs), self.name)
        if self.options.num_classes not in (None, logits.shape[1]):
            raise OptionError(
                f"num_classes is {self.options.num_classes}, but the model returns {logits.shape[1]} "
                f"logits. Pass num_classes={logits.shape[1]}."
            )
        return logits

    def descend(self, loss: Tensor) -> bool:
        """Take one optimizer step unless the loss or its gradient is not finite; return whether it was taken."""
        usable = self.differentiate(loss)
        if usable:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return usable

    def differentiate(self, loss: Tensor) -> bool:
        """Compute the gradient of ``loss``; warn and return False if anything in it is not finite."""
        if not loss.requires_grad:
            raise UnsupportedModelError(
                f"model ({type(self.model).__name__}) returned logits without gradient, so method {self.name!r} "
                "cannot learn: remove no_grad, inference_mode or detach from its forward."
            )
        loss.backward()
        gradients = [parameter.grad for parameter in self.trained.values() if parameter.grad is not None]
        norms = [norm.to(loss.device, loss.dtype) for norm in torch._foreach_norm(gradients)] if gradients else []
        # One transfer from the device: the sum is finite only if every term is.
        if torch.stack([loss.detach(), *norms]).sum().isfinite():
            return True
        self.warn_skipped("the loss or its gradient is not finite")
        return False

    def warn_skipped(self, reason: str, what: str = "this batch") -> None:
        """Warn that a batch, or a part of it, is not learned from."""
        self.warned = True
        warnings.warn(
            f"method {self.name!r} did not learn from {what}: {reason}. What was learned before is kept.",
            SkippedUpdateWarning,
            stacklevel=2,
        )

    # For the user.

    @property
    def cost(self) -> Cost:
        extra = 1 if self.options.predict == "after" else 0
        return Cost(self.passes.forward + extra, self.passes.backward)

    @property
    def collapse(self) -> Collapse | None:
        return self.guard.verdict()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch, the only argument, a floating-point tensor ``(B, ...)``, and learn from it."""
        inputs = self._only_batch(args, kwargs)
        self.warned = False
        # The caller may have turned gradients off; what is learned must not depend on that.
        with self.lock, torch.inference_mode(False), torch.enable_grad():
            inputs = inputs.clone() if inputs.is_inference() else inputs.detach()
            if not len(inputs):
                return self.predict(inputs)
            if not inputs.isfinite().all():
                self.warn_skipped("its inputs contain NaN or Inf")
                logits = self.predict(inputs)
            else:
                logits = self.learn(inputs).detach()
                overflowed = not logits.isfinite().all()
                if overflowed and not self.warned:
                    self.warn_skipped("logits of the model are not finite", what="such samples")
                # Without gradients, a sample that is not finite does not touch the others.
                if overflowed or self.options.predict == "after":
                    logits = self.predict(inputs)
            self.guard.observe(logits)
            return logits

    def _only_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            came = [getattr(argument, "dtype", type(argument).__name__) for argument in args] + sorted(kwargs)
            raise InputError(
                f"method {self.name!r} takes one floating-point tensor, the batch, as its only argument, got "
                f"({', '.join(map(str, came))}). Wrap a model that needs more in a module that takes one."
            )
        return args[0]

    def reset(self) -> None:
        with self.lock, torch.inference_mode(False):
            super().reset()
            self.source.copy_to(self.changing(self.model))
            self.reset_optimizer()
            for kept in self.children():
                if isinstance(kept, CollapseGuard | MemoryBank):
                    kept.reset()
            self._begin_stream()

    def restart(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for _, layer in self.layers():
                for moving in layer.children():
                    if isinstance(moving, MovingStatistics):
                        moving.start_from(layer.norm)
            self.source = Snapshot(self.changing(self.model))
        super().restart()

    def reset_optimizer(self) -> None:
        """Forget momentum and moments."""
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    def _begin_stream(self) -> None:
        self.generator.manual_seed(getattr(self.options, "seed", 0))
        #: For methods that select samples: which of the last batch passed the first test, and which all, ``(B,)``.
        self.reliable: Tensor | None = None
        self.selected: Tensor | None = None
        for name, value in self.remembered.items():
            setattr(self, name, value)

    def restore(self) -> nn.Module:
        self.reset()
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(self.required_grad[name])
        return super().restore()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # Loading moves the optimizer's own tensors to the parameters they belong to.
        self.optimizer.load_state_dict(self.optimizer.state_dict())
        return self


def moving_average(average: Any, value: Any, kept: float = 0.9) -> Any:
    """Move an average, a number or a tensor, towards a value; without an average so far, it is the value."""
    return value if average is None else kept * average + (1 - kept) * value
