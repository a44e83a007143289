"""Whether a captured program does what the module does: the same values, the same gradients.

``torch.export`` traces what a forward pass computes.  Gradients that a module makes other than
those of its values (by a hook, by a ``torch.autograd.Function`` of its own, under
``torch.no_grad``) are lost on the way without a word.  So both are run on samples of noise, with
noise in what is trained: behind a layer that begins as zeros, or as a scale of 10^-6, every
gradient would be as good as any other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from vtrain.errors import Problem

_CLOSE: Final = 1e-3
"""How far two results of the same arithmetic in float32 may be apart, of the largest element."""
_NOISE: Final = 0.5
_LEAST: Final = 0.25
"""Of what stands in place of a parameter of zeros; of a matrix, less where it has many columns."""
_LARGEST: Final = 127.0
"""Weights are below 128 in magnitude, with noise too."""
_DRAWN: Final = (
    "depends on random numbers of Python or numpy, and what torch.export captured has those of one "
    "call for ever"
)
_COUNTED: Final = (
    "is changed by each call, and the output with it: a step has it as it was captured, for ever"
)
_INSTEAD: Final = "leave it out while the task is made, or write the layer without it"


def find_hooks(module: nn.Module) -> list[Problem]:
    """Hooks that change gradients, which no captured program has."""
    problems = []
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            reason = "has a backward hook, which would not be called"
            problems.append(Problem(path, type(part).__name__, reason, _INSTEAD))
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            reason = "has a hook on its gradient, which would not be called"
            problems.append(Problem(name, "parameter", reason, _INSTEAD))
    return problems


def compare(
    module: nn.Module,
    program: ExportedProgram,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    output: str,
    notes: list[str],
) -> list[Problem]:
    """A problem where ``program`` gives another ``output`` for the ``example``'s arguments, with
    noise in place of its floats, or other gradients of it, than ``module`` does.

    What torch cannot compute is not compared, and a note says so.
    """
    try:
        return _compare(module, program, example, output)
    except Exception as error:  # noqa: BLE001 - a module is anybody's code
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        notes.append(
            "gradients were not held against the module's own: "
            f"{type(error).__name__}: {text.partition('. ')[0]}"
        )
        return []


def _compare(
    module: nn.Module,
    program: ExportedProgram,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    output: str,
) -> list[Problem]:
    args, kwargs = pytree.tree_map(_add_noise, example)
    number = list(program.graph_signature.user_outputs).index(output)
    trained = {name for name, one in module.named_parameters() if one.requires_grad}

    def call() -> Any:
        return pytree.tree_leaves(module(*args, **kwargs))[number]

    def run() -> torch.Tensor:
        return _run(module, program, pytree.tree_leaves((args, kwargs)), output)

    with keep_attributes(module), _keep_draws() as has_drawn:
        try:
            own = _differentiate(call, module, trained)
            if has_drawn():
                return [Problem("", "the output", _DRAWN, "nn.Dropout, or a rate of 0")]
            found = _differentiate(run, module, trained)
        except _NoGradientError:
            reason = "has no gradient: nothing that it depends on is trained"
            return [Problem("", "the output", reason, "compute it outside of torch.no_grad()")]
        counts = _list_numbers(module)
        again = _differentiate(call, module, trained)
        counters = [
            name for name, number in _list_numbers(module).items() if number != counts.get(name)
        ]
    largest = float(own.output.abs().max())
    if not _agree(own.output, again.output, largest):
        reason = "has other values the second time that the module is called"
        return [Problem("", "the output", reason, "leave out what counts the calls")]
    if counters and not _are_same(own, again):
        return [
            Problem(name.rpartition(".")[0], f"attribute {name}", _COUNTED, "a number that stays")
            for name in counters
        ]
    if not _agree(own.output, found.output, largest):
        # What draws in another order draws other numbers.
        if _draws(program):
            return []
        reason = "has other values in what torch.export captured than in the module"
        return [Problem("", "the output", reason, "compute it of the input and the parameters")]
    return _compare_gradients(module, own.gradients, found.gradients)


@contextmanager
def _keep_draws() -> Iterator[Callable[[], bool]]:
    """Whether random numbers were drawn of Python or numpy since, as yet; they are drawn again
    afterwards."""
    before, state = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002

    def has_drawn() -> bool:
        now = np.random.get_state(legacy=False)  # noqa: NPY002 - what modules use
        return random.getstate() != before or _differ(now, state)

    try:
        yield has_drawn
    finally:
        random.setstate(before)
        np.random.set_state(state)  # noqa: NPY002


def _differ(one: Any, other: Any) -> bool:
    """Whether two states of numpy's generator differ."""
    return any(not np.array_equal(one["state"][key], other["state"][key]) for key in ("key", "pos"))


def _list_numbers(module: nn.Module) -> dict[str, int | float]:
    """The attributes of a module and its parts that are numbers, by their names."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if type(value) in (int, float)
    }


def _are_same(one: _Found, other: _Found) -> bool:
    """Whether two calls gave the same bits."""
    return torch.equal(one.output, other.output) and all(
        torch.equal(gradient, other.gradients[name]) for name, gradient in one.gradients.items()
    )


def _compare_gradients(
    module: nn.Module, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> list[Problem]:
    largest = max((float(one.abs().max()) for one in own.values() if one.numel()), default=0.0)
    wrong = [name for name in own if not _agree(own[name], found[name], largest)]
    if not wrong:
        return []
    path, _, name = wrong[-1].rpartition(".")
    reason = (
        f"the module's own gradient is another than that of its values, in {len(wrong)} of "
        f"{len(own)} parameters, of which this is the last: a hook, torch.no_grad() or an "
        "autograd.Function behind it changes what goes back, and a task has the gradient of values"
    )
    what = f"{type(module.get_submodule(path)).__name__}, gradient of {name}"
    return [Problem(path, what, reason, "functions of torch alone, with their own gradients")]


@dataclass(frozen=True)
class _Found:
    output: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


@contextmanager
def keep_attributes(module: nn.Module) -> Iterator[None]:
    """Attributes that a forward pass sets are as before, afterwards."""
    before = [(vars(part), dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for attributes, kept in before:
            attributes.clear()
            attributes.update(kept)


@contextmanager
def with_noise(module: nn.Module) -> Iterator[None]:
    """A module with copies of its parameters and buffers, of which those that are trained have
    noise, the same each time: what is done to them is undone.

    (``torch.func.functional_call`` leaves its copies in a part that has two places.)
    """
    copies: dict[int, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(2)

    def copy(one: torch.Tensor | None) -> torch.Tensor | None:
        if one is None:
            return None
        if id(one) not in copies:
            made = one.detach().clone()
            if one.requires_grad:
                made = _disturb(made, generator)
            is_parameter = isinstance(one, nn.Parameter)
            copies[id(one)] = nn.Parameter(made, one.requires_grad) if is_parameter else made
        return copies[id(one)]

    before = [
        (vars(part), {key: vars(part)[key] for key in ("_parameters", "_buffers")})
        for part in module.modules()
    ]
    for attributes, kept in before:
        for key, tensors in kept.items():
            attributes[key] = {name: copy(one) for name, one in tensors.items()}
    try:
        yield
    finally:
        for attributes, kept in before:
            attributes.update(kept)


def _disturb(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """With noise of half its own size, or of what such a parameter mostly has, if that is more."""
    if not tensor.numel():
        return tensor
    own = float(tensor.float().square().mean().sqrt())
    columns = tensor.numel() / len(tensor) if tensor.ndim > 1 else 1.0
    size = min(max(own, min(_LEAST, columns**-0.5)), 1.0)
    noise = _NOISE * size * torch.randn(tensor.shape, generator=generator)
    made = tensor + noise.to(tensor.dtype)
    return torch.where(made.abs() < _LARGEST, made, tensor)


class WithoutDropout(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dropout leaves all as it is, by whatever function, module or attention it comes about.

    What it draws, of ones and zeros, is its share of ones, by which it divides.  A captured program
    has it as one operator, with a gradient of its own.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Of each operator that is run on the CPU."""
        given = kwargs or {}
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else given.get("p", 0.5))
        if func is torch.ops.aten.native_dropout.default and 0 < args[1] < 1 and args[2]:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is torch.ops.aten.native_dropout_backward.default and args[2]:
            return args[0].clone()
        return func(*args, **given)


class _NoGradientError(Exception):
    """The output does not depend on what is trained."""


def _add_noise(item: Any) -> Any:
    """Floats that differ from sample to sample: of equal ones a norm over the batch makes nothing
    but rounding."""
    if not isinstance(item, torch.Tensor) or not item.dtype.is_floating_point:
        return item
    noise = torch.randn(item.shape, generator=torch.Generator().manual_seed(1))
    return item.detach() + _NOISE * noise.to(item.dtype)


def _differentiate(
    compute: Callable[[], torch.Tensor], module: nn.Module, trained: Set[str]
) -> _Found:
    """An output, and the gradients of a sum of its elements, each times a factor of its own."""
    with (
        with_noise(module),
        WithoutDropout(),  # type: ignore[no-untyped-call]
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
    ):
        torch.manual_seed(0)
        output = compute()
        if not trained:
            return _Found(output.detach(), {})
        if not output.requires_grad:
            raise _NoGradientError
        factors = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view_as(output)
        wanted = {name: one for name, one in module.named_parameters() if name in trained}
        found = torch.autograd.grad(
            (output * factors).sum(), [*wanted.values()], allow_unused=True, materialize_grads=True
        )
    return _Found(output.detach(), dict(zip(wanted, found, strict=True)))


def _run(
    module: nn.Module, program: ExportedProgram, leaves: list[Any], output: str
) -> torch.Tensor:
    """The output of the captured program, of the tensors that the module has."""
    given = iter(leaves)
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    inputs = []
    for spec in program.graph_signature.input_specs:
        match spec.kind:
            case InputKind.PARAMETER | InputKind.BUFFER:
                inputs.append(tensors[str(spec.target)])
            case InputKind.CONSTANT_TENSOR:
                inputs.append(program.constants[str(spec.target)])
            case _:
                inputs.append(next(given))
    results = program.graph_module(*inputs)
    for made, result in zip(program.graph_signature.output_specs, results, strict=True):
        if made.kind == OutputKind.USER_OUTPUT and getattr(made.arg, "name", None) == output:
            return result  # type: ignore[no-any-return]
    raise AssertionError(f"{output} is none of the program's outputs")


def _draws(program: ExportedProgram) -> bool:
    """Whether it has random numbers other than those of dropout."""
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        and not any(name in str(node.target) for name in ("dropout", "dot_product_attention"))
        for node in program.graph.nodes
    )


def _agree(one: torch.Tensor, other: torch.Tensor, largest: float) -> bool:
    """Whether two tensors are the same but for rounding; what is not finite says nothing."""
    if one.shape != other.shape:
        return False
    if not one.numel() or not math.isfinite(largest):
        return True
    scale = max(float(one.abs().max()), float(other.abs().max()), _CLOSE * largest)
    apart = float((one - other).abs().max())
    return not apart > _CLOSE * scale
