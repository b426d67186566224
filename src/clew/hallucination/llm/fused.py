"""Parts of a model that compute the same in less time. On a GPU, norms, gated activations and
rotary embeddings, each in one kernel: one after the other, their operations take as long as a third
of the matrices. On a CPU, the matrices, where a pass has few tokens."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from clew.hallucination.llm.device_map import is_spread, model_device

_ROTATE = "apply_rotary_pos_emb"
_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_SIZE, _TOKENS = 64, 5
# MKL multiplies so many tokens by a matrix of at least this size faster the other way round, 16 of
# them in less than half of the time.
_FEW_TOKENS, _LEAST_WEIGHTS = range(8, 57), 1 << 16
_Forward = Callable[..., Any]
# What a trial may raise: a module with another signature, or a kernel that cannot be compiled.
_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ImportError)

_known: WeakKeyDictionary[PreTrainedModel, "FusedParts"] = WeakKeyDictionary()


def fused_parts(model: PreTrainedModel) -> "FusedParts":
    """Those of a model, tried once."""
    if model not in _known:
        _known[model] = FusedParts(model)
    return _known[model]


class FusedParts:
    """The parts of a model that have a kernel, which are replaced while it is used."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._forwards: list[tuple[nn.Module, _Forward]] = []
        self._rotations: list[tuple[ModuleType, _Forward]] = []
        self._products = [*_find_products(model)]
        if _can_fuse(model):
            dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
            tried: dict[type[nn.Module], bool] = {}
            for module in model.modules():
                found = _find_kernel(module)
                if found is not None and _agrees(module, *found, dtype, tried):
                    self._forwards.append((module, found[0]))
            self._rotations = list(_find_rotations(model, dtype))

    def drop_products(self) -> bool:
        """Use no products of ours any more; False if there are none."""
        had = bool(self._products)
        self._products = []
        return had

    @property
    def count(self) -> int:
        return len(self._forwards) + len(self._rotations) + len(self._products)

    @contextmanager
    def used(self) -> Iterator[None]:
        before = [(where, getattr(where, _ROTATE)) for where, _ in self._rotations]
        forwards = [*self._forwards, *self._products]
        try:
            for module, forward in forwards:
                module.__dict__["forward"] = forward  # `Module.__setattr__` takes longer
            for where, rotate in self._rotations:
                setattr(where, _ROTATE, rotate)
            yield
        finally:
            for module, _ in forwards:
                module.__dict__.pop("forward", None)
            for where, rotate in before:
                setattr(where, _ROTATE, rotate)


def _can_fuse(model: PreTrainedModel) -> bool:
    is_on_gpu = model_device(model).type == "cuda" and torch.utils._triton.has_triton()
    return is_on_gpu and not is_spread(model) and not getattr(model, "is_quantized", False)


def _find_products(model: PreTrainedModel) -> Iterator[tuple[nn.Module, _Forward]]:
    """The layers of a model on a CPU whose products `_multiply` may compute."""
    is_on_cpu = model_device(model).type == "cpu" and torch.backends.mkl.is_available()
    if not is_on_cpu or is_spread(model) or getattr(model, "is_quantized", False):
        return
    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in module.__dict__:
            weight = module.weight
            if weight.dtype == torch.float32 and weight.numel() >= _LEAST_WEIGHTS:
                yield module, partial(_multiply, module)


def _multiply(layer: nn.Linear, x: Float[Tensor, "*tokens size"]) -> Float[Tensor, "*tokens out"]:
    """What the layer returns. Few tokens are multiplied as columns."""
    count = x.numel() // x.shape[-1]
    if count not in _FEW_TOKENS:
        return nn.functional.linear(x, layer.weight, layer.bias)
    columns = x.reshape(count, -1).T
    if layer.bias is None:
        found = torch.mm(layer.weight, columns)
    else:
        found = torch.addmm(layer.bias[:, None], layer.weight, columns)
    return found.T.unflatten(0, x.shape[:-1])


def _find_kernel(module: nn.Module) -> tuple[_Forward, int] | None:
    """What may do the same as a module's own operations, and the size of its input."""
    if "forward" in module.__dict__:
        return None
    from clew.hallucination.llm import kernels

    parts = dict(module.named_children())
    if _GATED.issuperset(parts) and len(parts) == len(_GATED) and not [*module.parameters(False)]:

        def forward(x: Tensor) -> Tensor:
            return parts["down_proj"](kernels.gate(parts["gate_proj"](x), parts["up_proj"](x)))

        return forward, int(parts["gate_proj"].in_features)  # type: ignore[arg-type]
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    named = dict(module.named_parameters())
    if parts or [*named] != ["weight"] or not isinstance(eps, float) or named["weight"].dim() != 1:
        return None
    weight = named["weight"]
    return partial(kernels.normalize, weight=weight, eps=eps), len(weight)


def _agrees(
    module: nn.Module,
    forward: _Forward,
    size: int,
    dtype: torch.dtype,
    tried: dict[type[nn.Module], bool],
) -> bool:
    """Whether a kernel gives what a module gives; the first of each class is tried."""
    kind = type(module)
    if kind not in tried:
        device = next(module.parameters()).device
        x = _numbers(1, _TOKENS, size, dtype=dtype, device=device)
        tried[kind] = _gives_same(module, forward, x)
    return tried[kind]


@torch.inference_mode()
def _gives_same(plain: _Forward, fused: _Forward, *given: Tensor) -> bool:
    try:
        pairs = [(plain(*given), fused(*given))]
        if isinstance(pairs[0][0], tuple):
            pairs = list(zip(*pairs[0], strict=True))
        return all(
            a.dtype == b.dtype
            and a.shape == b.shape
            and bool((a - b).float().norm() <= _TOLERANCE[a.dtype] * a.float().norm())
            for a, b in pairs
        )
    except _ERRORS:
        return False


def _find_rotations(
    model: PreTrainedModel, dtype: torch.dtype
) -> Iterator[tuple[ModuleType, _Forward]]:
    """The modules of Python whose rotation of queries and keys a kernel can do: models call it as a
    function."""
    device = model_device(model)
    q, k = (_numbers(1, heads, _TOKENS, _SIZE, dtype=dtype, device=device) for heads in (4, 2))
    cos, sin = (_numbers(1, _TOKENS, _SIZE, dtype=dtype, device=device) for _ in range(2))
    for name in {type(module).__module__ for module in model.modules()}:
        where = sys.modules.get(name)
        plain = getattr(where, _ROTATE, None)
        if where is not None and plain is not None:
            rotate = partial(_rotate, plain)
            if _gives_same(plain, rotate, q, k, cos, sin.flip(1)):
                yield where, rotate


def _rotate(
    plain: _Forward, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    from clew.hallucination.llm.kernels import rotate

    fits = q.is_cuda and len(q) == 1 and q.dim() == 4 and q.shape[-1] == cos.shape[-1]
    if args or kwargs or not fits or cos.dtype != q.dtype:
        return plain(q, k, cos, sin, *args, **kwargs)
    return rotate(q, cos[0], sin[0]), rotate(k, cos[0], sin[0])


def _numbers(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as varied as random ones, without drawing any."""
    count = torch.Size(shape).numel()
    places = torch.arange(1, count + 1, device=device, dtype=torch.float64)
    return (places * places * 0.7).sin().to(dtype).view(shape)
