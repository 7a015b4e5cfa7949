"""`weft.nn.patch(model)`: replaces the norms, activations and losses of an existing model by weft's functions; `undo` restores it.

Owns what is recognized, and how: torch's modules by class, norms of Hugging Face models by their structure (a weight of one axis, an eps, RMSNorm or LayerNorm
in the class's name), gated MLPs by their three projections, the loss of the next token by the name of its function.
Instances are changed, never classes, so other models stay as they are; parameters stay the same objects. Read first: `patch`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ..errors import UserError, shown
from ..runtime.argument_kinds import checked
from . import functional as F
from . import modules as M
from .results import WrongArgument


class NothingToPatch(UserError):
    code = "W143"
    what = "{model} contains no module that weft replaces{among}"
    fix = "pass a torch.nn.Module that contains one of these: {known}"


class Patched:
    """The changes that `patch` made: names of modules, and what computes them now. `undo()` restores the old forwards; also a context manager."""

    def __init__(self) -> None:
        self.swapped: dict[str, str] = {}
        self._undo: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Restore the model as it was."""
        while self._undo:
            self._undo.pop()()
        self.swapped.clear()

    def __enter__(self) -> "Patched":
        return self

    def __exit__(self, *exc: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for kind in self.swapped.values():
            counts[kind] = counts.get(kind, 0) + 1
        return f"<weft computes {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items())) or 'nothing'}>"


def _torch_module(ours: type[nn.Module]) -> Callable[[nn.Module], Any]:
    """Recognize exactly torch's class of which `ours` is the subclass; its forward is bound to the instance."""
    theirs = next(base for base in ours.__mro__ if base.__module__.startswith("torch.nn.modules") and base.__name__ == ours.__name__)

    def recognize(module: nn.Module) -> Any:
        if type(module) is not theirs:
            return None
        missing = {"weight_offset": 0.0, "casting": "torch", "z_loss": 0.0, "softcap": 0.0}
        made = types.SimpleNamespace(**{k: v for k, v in missing.items() if not hasattr(module, k)})
        return _forward_of(ours, module, made)

    return recognize


def _forward_of(ours: type[nn.Module], module: nn.Module, defaults: types.SimpleNamespace) -> dict[str, Any]:
    """Return the attributes that make an instance compute by `ours`."""
    found: dict[str, Any] = {"forward": types.MethodType(ours.forward, module), **vars(defaults)}
    if hasattr(ours, "_apply_instance_norm"):
        found = {"_apply_instance_norm": types.MethodType(ours._apply_instance_norm, module)}
    return found


def _hugging_face_rms_norm(module: nn.Module) -> Any:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    known = "RMSNorm" in type(module).__name__ and isinstance(weight, nn.Parameter) and weight.dim() == 1 and isinstance(eps, float)
    if not known or isinstance(module, nn.RMSNorm) or set(dict(module.named_parameters(recurse=False))) != {"weight"}:
        return None
    is_gemma = "Gemma" in type(module).__name__
    offset, casting = (1.0, "gemma") if is_gemma else (0.0, "llama")

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden_states, self.weight.shape, self.weight, eps, weight_offset=offset, casting=casting)

    return {"forward": types.MethodType(forward, module)}


_ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu"}


def _gated_mlp(module: nn.Module) -> Any:
    projections = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    act = getattr(module, "act_fn", None)
    if not all(isinstance(p, nn.Linear) for p in projections) or type(act).__name__ not in _ACTIVATIONS or len(list(module.children())) > 4:
        return None

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.swiglu(self.gate_proj(x), self.up_proj(x)))

    return {"forward": types.MethodType(forward, module)}


def _causal_loss(module: nn.Module) -> Any:
    """Recognize a model of Hugging Face whose loss is that of the next token; its logits stay in 16 bits, their gradient, too."""
    kind = getattr(module, "loss_type", None)
    is_causal = kind == "ForCausalLM" or kind is None and type(module).__name__.endswith("LMHeadModel")  # for which transformers takes that loss, too
    if not is_causal or not isinstance(getattr(type(module), "loss_function", None), property):
        return None
    if getattr(module.loss_function, "__name__", "") != "ForCausalLMLoss":
        return None
    return {"_loss_function": causal_loss}


def causal_loss(
    logits: torch.Tensor, labels: torch.Tensor | None, vocab_size: int, num_items_in_batch: torch.Tensor | int | None = None, ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None, **unused: Any,
) -> torch.Tensor:  # fmt: skip
    """Return the loss of the next token in float32, as transformers' ForCausalLMLoss does, without a copy of the logits in float32.

    Shapes: logits [..., tokens, vocab_size], labels [..., tokens]; shift_labels, already moved by one token, goes before labels.
    """
    if shift_labels is None:
        if labels is None:
            raise WrongArgument(function="causal_loss", problem="labels and shift_labels are None", remedy="pass one of them")
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    wanted = shift_labels.reshape(-1).to(logits.device)
    kind = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(logits.reshape(-1, vocab_size), wanted, ignore_index=ignore_index, reduction=kind, out_dtype=torch.float32)
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch)


KINDS: dict[str, Callable[[nn.Module], Any]] = {
    **{
        kind.__name__: _torch_module(kind)
        for kind in (
            M.LayerNorm, M.RMSNorm, M.GroupNorm, M.BatchNorm1d, M.BatchNorm2d, M.BatchNorm3d, M.InstanceNorm1d, M.InstanceNorm2d, M.InstanceNorm3d, M.Softmax,
            M.LogSoftmax, M.GELU, M.SiLU, M.CrossEntropyLoss, M.KLDivLoss,
        )
    },
    "Hugging Face RMSNorm": _hugging_face_rms_norm, "gated MLP": _gated_mlp, "loss of the next token": _causal_loss,
}  # fmt: skip
"""What is recognized -> function of a module that returns the attributes to set on it, or None."""


@checked
def patch(model: nn.Module, *, only: Iterable[str] | None = None) -> Patched:
    """Replace the norms, activations, gated MLPs and losses of `model` by weft's functions; return the changes, with `undo()`.

    only: kinds to look for (`KINDS`), all of them unless given. Parameters, buffers and names stay, so checkpoints load as before.
    Errors: NothingToPatch.
    """
    if not isinstance(model, nn.Module):
        raise NothingToPatch(model=f"the {type(model).__name__} {shown(model)}", among="", known=", ".join(KINDS))
    kinds = KINDS if only is None else {name: KINDS[name] for name in _known(only)}
    done = Patched()
    for name, module in model.named_modules():
        for kind, recognize in kinds.items():
            attributes = recognize(module)
            if attributes is not None:
                done._undo.append(_set(module, attributes))
                done.swapped[name or type(module).__name__] = kind
                break
    if not done.swapped:
        raise NothingToPatch(model=f"the model {type(model).__name__}", among="" if only is None else f" among {', '.join(kinds)}", known=", ".join(KINDS))
    return done


class UnknownKind(UserError):
    code = "W144"
    what = "only={name!r} is not a kind of module that weft replaces"
    fix = "use some of: {kinds}"


def _known(only: Iterable[str]) -> list[str]:
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in KINDS:
            raise UnknownKind(name=name, kinds=", ".join(KINDS))
    return names


def _set(module: nn.Module, attributes: dict[str, Any]) -> Callable[[], None]:
    """Set attributes on an instance; return what takes them away again."""
    before = {name: module.__dict__[name] for name in attributes if name in module.__dict__}
    module.__dict__.update(attributes)

    def undo() -> None:
        for name in attributes:
            module.__dict__.pop(name, None)
        module.__dict__.update(before)

    return undo
