"""Running ``torch.export`` on a module, in training semantics, and what can be said of the result.

The batch is symbolic, so that nothing of the captured program depends on the example's.  Problems
are collected, and named by the path of the module they are in.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from vtrain.errors import Problem, UnsupportedError
from vtrain.graph.from_torch.compare import (
    compare,
    find_hooks,
    keep_attributes,
    with_noise,
)
from vtrain.graph.from_torch.plain import with_plain_attention

_EXAMPLES: Final = 2
"""Samples in the example that is traced: torch takes a batch of one for a constant."""
_UNINITIALISED: Final = "has no parameters yet: it takes its sizes from its first input"
_ANY_MOMENTUM: Final = 0.1
_STOPPED: Final = "torch.export stops at this, and others may follow"
_QUANTIZED: Final = (
    *("torch.ao.nn.", "torch.ao.quantization.", "torch.nn.quantized.", "torch.nn.qat."),
    *("torch.nn.intrinsic.", "torch.nn.quantizable."),
)
"""Where torch has modules that are quantized, or on the way there."""
_DROPS_SAMPLES: Final = ("DropPath", "StochasticDepth")
"""What classes are called that drop a branch of whole samples."""
_DROPS_NOTHING: Final = "a rate of 0: stochastic_depth_prob=0.0, drop_path_rate=0.0"
_FLOAT: Final = "the module of floats, as before torch.ao.quantization's prepare and convert"


@dataclass(frozen=True)
class Capture:
    """A captured program: ``input`` and ``output`` are nodes of its graph.

    ``parameters`` and ``buffers`` map placeholders to names in the module, of which tied ones have
    the first.  ``notes`` say what was changed to capture it.  ``problems`` are those that leave
    something to look at, and ``named`` the parts that some are of as a whole.  ``example`` are the
    arguments by place and by name that were traced, and ``number`` is that of the output among all
    leaves of what the module gives.  ``module`` is the one that was given, or that inside it, or a
    copy where it has no sizes yet.
    """

    module: nn.Module
    program: ExportedProgram
    input: fx.Node
    output: fx.Node
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, torch.Tensor]
    example: tuple[tuple[Any, ...], dict[str, Any]]
    number: int
    notes: list[str] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    named: frozenset[str] = frozenset()

    def note(self, text: str) -> None:
        """Say what was changed, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def changing(self) -> frozenset[str]:
        """Placeholders of the buffers that the forward pass changes."""
        signature = self.program.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        return frozenset(
            key for key, path in signature.inputs_to_buffers.items() if path in changed
        )

    def call(self, x: torch.Tensor) -> torch.Tensor:
        """The module's own output of ``x``, in training, as its tensors are; UnsupportedError where
        it cannot be called."""
        args, kwargs = pytree.tree_map(
            lambda one: x if isinstance(one, torch.Tensor) else one, self.example
        )
        with _in_training(self.module, []), _without_cache(self.module, []), torch.no_grad():
            try:
                leaves = pytree.tree_leaves(self.module(*args, **kwargs))
            except Exception as error:
                raise UnsupportedError([_explain_call(self.module, error)]) from error
            found: torch.Tensor = leaves[self.number]
        # A module may switch gradients on again.
        return found.detach()


def capture(module: nn.Module, example_inputs: object, output: str | int | None = None) -> Capture:
    """Export ``module`` for ``example_inputs``: a tensor, a tuple, or a dict of arguments by name.

    One of them is a tensor, whose first axis is the batch.  ``output`` names the output to train by
    where there are several (default: ``logits``).  UnsupportedError, where nothing can be captured,
    names all that is known by then.
    """
    args, kwargs = _read_example(example_inputs)
    module, known = _unwrap(module)
    module, lazy = _give_sizes(module, args, kwargs)
    whole = _check_parts(module)
    known += [*lazy, *(problem for problem, _ in whole), *_check_tensors(module)]
    known += [*_check_memory(module), *find_hooks(module)]
    named = _list_named(module, [problem.path for problem, _ in whole])
    if _is_beyond(module) or any(blocks for _, blocks in whole):
        raise UnsupportedError([*known, _leave_rest(module)], where="from_torch")
    notes: list[str] = []
    changed: list[Problem] = []
    problems: list[Problem] = []
    with _in_training(module, notes), _without_cache(module, notes):
        with with_plain_attention(module), _without_overwriting(module), _as_if_mended(module):
            program = _export(module, args, kwargs, known, named)
        changed += drop_named(_check_mutations(module, program), named)
        chosen = _choose_output(program, output, problems)
        if chosen is not None and not (known or changed):
            changed += compare(module, program, (args, kwargs), chosen, notes)
            changed += _check_constants(module, program)
    changed = [*known, *changed]
    names = _name_tensors(module)
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [nodes[name] for name in signature.user_inputs if isinstance(name, str)]
    tensors = [node for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)]
    if len(tensors) != 1:
        problems.append(
            Problem(
                "",
                f"{len(tensors)} inputs",
                "a model has one tensor as its input",
                "wrap the module in one that makes the others itself, of the input or as buffers",
            )
        )
    if problems or chosen is None:
        raise UnsupportedError([*changed, *problems], where="from_torch")
    return Capture(
        module=module,
        program=program,
        input=tensors[0],
        output=nodes[chosen],
        parameters={key: names[path] for key, path in signature.inputs_to_parameters.items()},
        buffers={key: names[path] for key, path in signature.inputs_to_buffers.items()},
        constants={
            key: program.constants[path]
            for key, path in signature.inputs_to_lifted_tensor_constants.items()
        },
        example=(args, kwargs),
        number=list(signature.user_outputs).index(chosen),
        notes=notes,
        problems=tuple(changed),
        named=named,
    )


def drop_named(problems: Sequence[Problem], named: Collection[str]) -> list[Problem]:
    """Problems but for those of parts that are ``named`` already."""
    inside = tuple(f"{path}." for path in named if path)
    return [
        problem
        for problem in problems
        if problem.path not in named and not problem.path.startswith(inside)
    ]


def _list_named(module: nn.Module, paths: Sequence[str]) -> frozenset[str]:
    """What a problem of the whole part at each path stands for: a part of torch's own, and what
    makes the weights of any."""
    kinds = {
        path: parametrize.type_before_parametrizations(module.get_submodule(path)) for path in paths
    }
    own = [
        path
        for path, kind in kinds.items()
        if kind.__module__.startswith("torch.nn.modules") or kind.__name__.endswith(_DROPS_SAMPLES)
    ]
    return frozenset((*own, *(f"{path}.parametrizations".lstrip(".") for path in paths)))


def _read_example(example: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and those by name, with at least two samples in the batch."""
    args: tuple[Any, ...]
    match example:
        case Mapping():
            args, kwargs = (), {str(key): value for key, value in example.items()}
        case tuple() | list():
            args, kwargs = tuple(example), {}
        case _:
            args, kwargs = (example,), {}
    if not any(isinstance(item, torch.Tensor) for item in (*args, *kwargs.values())):
        raise UnsupportedError(
            [
                Problem(
                    "example_inputs",
                    type(example).__name__,
                    "has no tensor",
                    "give a tensor, a tuple of arguments, or a dict of them by name",
                )
            ],
            where="from_torch",
        )
    for item in (*args, *kwargs.values()):
        if isinstance(item, torch.Tensor) and item.ndim and not len(item):
            what, fix = f"a tensor of the shape {[*item.shape]}", "one sample or more: data[:2]"
            problem = Problem("example_inputs", what, "has no samples", fix)
            raise UnsupportedError([problem], where="from_torch")
    return tuple(map(_repeat, args)), {key: _repeat(item) for key, item in kwargs.items()}


def _repeat(item: Any) -> Any:
    if not isinstance(item, torch.Tensor) or item.ndim == 0:
        return item
    item = item.detach()
    while 0 < len(item) < _EXAMPLES:
        item = torch.cat((item, item))
    return item


def _unwrap(module: nn.Module) -> tuple[nn.Module, list[Problem]]:
    """The module that is meant, inside one around it in which its parameters have other names."""
    inside = "_orig_mod" if hasattr(module, "_orig_mod") else "module"
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if inside == "module" and not isinstance(module, wrappers):
        return module, []
    fix = f"the module inside: model.{inside}"
    reason = "wraps the module that is to be trained"
    problem = Problem("", type(module).__name__, reason, fix)
    found, more = _unwrap(getattr(module, inside))
    return found, [problem, *more]


def _give_sizes(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, list[Problem]]:
    """A copy of a module that takes its sizes from its first input, with these; a problem for each
    part that has none."""
    problems = [
        Problem(path, type(part).__name__, _UNINITIALISED, "call the module on an example once")
        for path, part in module.named_modules()
        if _is_lazy(part)
    ]
    if not problems:
        return module, []
    try:
        sized = copy.deepcopy(module)
        with _quietly(), _without_draws():
            sized(*args, **kwargs)
    except Exception:  # noqa: BLE001 - a module is anybody's code
        return module, problems
    return sized, problems


def _is_lazy(part: nn.Module) -> bool:
    own = (*part.parameters(recurse=False), *part.buffers(recurse=False))
    return any(is_lazy(tensor) for tensor in own)


def _is_beyond(module: nn.Module) -> bool:
    """Whether it has tensors without values, or elsewhere, with which nothing can be computed."""
    return any(
        is_lazy(tensor) or tensor.device.type != "cpu" or tensor.dtype.is_complex
        for tensor in (*module.parameters(), *module.buffers())
    )


def _leave_rest(module: nn.Module) -> Problem:
    reason = "was not captured with what is named here: other problems may follow"
    return Problem("", type(module).__name__, reason, "mend these, and try again")


def _check_parts(module: nn.Module) -> list[tuple[Problem, bool]]:
    """Parts that cannot be had, by what they are; and whether nothing can be captured with one."""
    found: list[tuple[Problem, bool]] = []
    scripted: list[str] = []

    def refuse(reason: str, fix: str, what: str = "", *, blocks: bool = False) -> None:
        found.append((Problem(path, what or type(part).__name__, reason, fix), blocks))

    for path, part in module.named_modules():
        if any(not outer or path.startswith(f"{outer}.") for outer in scripted):
            continue
        trains = part.training or not module.training
        if isinstance(part, torch.jit.ScriptModule):
            scripted.append(path)
            reason = "is compiled by torch.jit, behind which torch.export sees nothing"
            refuse(reason, "the nn.Module that it was made of", blocks=True)
        elif type(part).__module__.startswith(_QUANTIZED):
            reason = "is quantized, or made for that, and a task trains the weights that it is of"
            refuse(reason, _FLOAT, blocks=True)
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            refuse("has sparse gradients, and a step has those of the whole table", "sparse=False")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            reason = "scales rows in the forward pass, and a step changes them by their gradients"
            refuse(reason, "max_norm=None")
        if trains and _drops_samples(part):
            refuse("drops whole samples, by draws of its own", _DROPS_NOTHING)
        if _takes_all_batches(part) and trains:
            reason = "takes the mean of all batches so far (momentum=None), by a count that changes"
            refuse(reason, "momentum=0.1")
        for name, how, fix in _find_reparametrized(part):
            reason = f"is computed by {how} in each pass, and a step trains parameters as they are"
            kind = parametrize.type_before_parametrizations(part).__name__
            refuse(reason, fix, f"{kind}, {name}")
    return found


def _drops_samples(part: nn.Module) -> bool:
    """Of such a class alone: elsewhere ``p`` may be anything, a parameter too."""
    if not type(part).__name__.endswith(_DROPS_SAMPLES):
        return False
    return bool(getattr(part, "p", getattr(part, "drop_prob", 0)))


def _takes_all_batches(part: nn.Module) -> bool:
    if not isinstance(part, nn.modules.batchnorm._BatchNorm):
        return False
    return part.track_running_stats and part.momentum is None


def _find_reparametrized(part: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Names of a part's tensors that are made of parameters, what makes them, and how to end it."""
    if parametrize.is_parametrized(part):
        for name, made in part.parametrizations.items():  # type: ignore[operator, union-attr]
            how = " and ".join(type(one).__name__.lstrip("_") for one in made)
            yield name, how, _name_remedy(name)
    for hook in part._forward_pre_hooks.values():
        if isinstance(hook, prune.BasePruningMethod):
            name = str(hook._tensor_name)
            yield name, "pruning", f'torch.nn.utils.prune.remove(layer, "{name}")'
        elif isinstance(hook, WeightNorm):
            yield (
                hook.name,
                "WeightNorm",
                f'torch.nn.utils.remove_weight_norm(layer, "{hook.name}")',
            )
        elif isinstance(hook, SpectralNorm):
            fix = f'torch.nn.utils.remove_spectral_norm(layer, "{hook.name}")'
            yield hook.name, "SpectralNorm", fix


def _name_remedy(name: str) -> str:
    return (
        f"a {name} that is a parameter as it is: "
        f'parametrize.remove_parametrizations(layer, "{name}")'
    )


PLAIN_WEIGHT: Final = _name_remedy("weight")
UNCHANGED: Final = (
    "a parameter of the shape that it has in use ([channels, 1, 1], no view of it), to which at "
    f"most a number is added as a factor, x * (1 + weight); of one that is computed, {PLAIN_WEIGHT}"
)
"""What would do in place of something that is computed of a parameter."""


def _check_tensors(module: nn.Module) -> list[Problem]:
    """Tensors that have no values here, or such as nothing is trained by."""
    problems = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            continue  # said of the part
        if tensor.is_meta:
            reason = "is on the device meta, without values"
            problems.append(Problem(name, "tensor", reason, "load or initialise its values"))
        elif tensor.dtype.is_complex:
            reason, fix = "is of complex numbers", "its real and its imaginary part, as floats"
            problems.append(Problem(name, "tensor", reason, fix))
        elif tensor.device.type != "cpu":
            reason = f"is on the device {tensor.device}"
            problems.append(Problem(name, "tensor", reason, "move the module: module.cpu()"))
    return problems


def _check_memory(module: nn.Module) -> list[Problem]:
    """Tensors that are trained, and others that have the same memory and would not follow them."""
    # A tensor with several names is one; what was seen before is named first.
    listed = [*module.named_parameters(), *module.named_buffers()]
    problems = []
    for number, (name, tensor) in enumerate(listed):
        for other, earlier in listed[:number]:
            if not (tensor.requires_grad or earlier.requires_grad) or not _overlap(tensor, earlier):
                continue
            reason = f"has the memory of {other}, and is a tensor of its own: it would not follow"
            instead = f"assign the parameter itself, as in b.weight = a.weight: {name} = {other}"
            problems.append(Problem(name, "tensor", reason, instead))
            break
    return problems


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have an element in common."""
    if any(is_lazy(item) or item.device.type != "cpu" for item in (one, other)):
        return False
    (first, last), (begin, end) = _find_memory(one), _find_memory(other)
    if last <= begin or end <= first:
        return False
    # They may alternate, as the halves of the columns of one matrix do.
    start = min(first, begin)
    taken = torch.zeros(max(last, end) - start, dtype=torch.bool)
    mark, seen = (
        taken.as_strided(
            (*tensor.shape, tensor.element_size()),
            (*(stride * tensor.element_size() for stride in tensor.stride()), 1),
            place - start,
        )
        for tensor, place in ((one, first), (other, begin))
    )
    mark.fill_(True)
    return bool(seen.any())


def _find_memory(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor, and that after its last."""
    if not tensor.numel():
        return 0, 0
    span = sum(
        (extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (span + 1) * tensor.element_size()


def _check_constants(module: nn.Module, program: ExportedProgram) -> list[Problem]:
    """Attributes that are no buffers, with the memory of what is trained."""
    reason = "as it is now is read by the forward pass, in an attribute with the same memory"
    instead = "read the parameter itself"
    return [
        Problem(name, "parameter", reason, instead)
        for name, one in module.named_parameters()
        if one.requires_grad
        and any(
            isinstance(constant, torch.Tensor) and _overlap(constant, one)
            for constant in program.constants.values()
        )
    ]


@contextmanager
def _in_training(module: nn.Module, notes: list[str]) -> Iterator[None]:
    """The module in training, and its parts as they are if it is; afterwards all is as before."""
    before = {id(part): part.training for part in module.modules()}
    if not module.training:
        module.train()
        notes.append(
            "the module was in eval mode, and is trained in training mode: if it has dropout it "
            "drops, and BatchNorm takes the statistics of the batch"
        )
    idle = {path for path, part in module.named_modules() if not part.training}
    whole = sorted(path for path in idle if path.rpartition(".")[0] not in idle)
    if whole:
        notes.append(f"in eval mode, and left so, so that nothing is dropped: {', '.join(whole)}")
    try:
        yield
    finally:
        for part in module.modules():
            part.training = before[id(part)]


@contextmanager
def _without_overwriting(module: nn.Module) -> Iterator[None]:
    """Dropout that writes its values elsewhere: in place torch makes it of random bits, of which
    nobody would know whose they are."""
    parts = [part for part in module.modules() if type(part) is nn.Dropout and part.inplace]
    for part in parts:
        part.inplace = False
    try:
        yield
    finally:
        for part in parts:
            part.inplace = True


@contextmanager
def _as_if_mended(module: nn.Module) -> Iterator[None]:
    """Without backward hooks, and with norms that have a momentum: both were refused, and what else
    is wrong can be seen so."""
    keys = ("_backward_hooks", "_backward_pre_hooks")
    before = [(vars(part), {key: vars(part)[key] for key in keys}) for part in module.modules()]
    norms = [part for part in module.modules() if _takes_all_batches(part)]
    for attributes, kept in before:
        attributes.update({key: type(hooks)() for key, hooks in kept.items()})
    for norm in norms:
        vars(norm)["momentum"] = _ANY_MOMENTUM
    try:
        yield
    finally:
        for attributes, kept in before:
            attributes.update(kept)
        for norm in norms:
            vars(norm)["momentum"] = None


@contextmanager
def _without_cache(module: nn.Module, notes: list[str]) -> Iterator[None]:
    """A ``transformers`` model that returns no past keys, which no training step has."""
    config = getattr(module, "config", None)
    if getattr(config, "use_cache", None) is not True:
        yield
        return
    config.use_cache = False  # type: ignore[union-attr]
    notes.append("config.use_cache is False while the module is captured")
    try:
        yield
    finally:
        config.use_cache = True  # type: ignore[union-attr]


def _export(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Sequence[Problem],
    named: Collection[str],
) -> ExportedProgram:
    """The program.  UnsupportedError has the problems that are ``known``, and what ended it if that
    is not of a part that is ``named``."""
    batch = torch.export.Dim("batch")

    def spread(item: Any) -> Any:
        return {0: batch} if isinstance(item, torch.Tensor) and item.ndim else None

    try:
        shapes = _spread_arguments(module, args, kwargs, spread)
        with _quietly():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
            # Functional: nothing is changed in place any more.  Operators stay as they are called.
            functional: ExportedProgram = program.run_decompositions({})
            return functional
    except Exception as error:
        ended = _find_short(args, kwargs) or _try_call(module, args, kwargs)
        if ended is None:
            explained = _explain(*_locate(module, error), error)
            ended = replace(explained, reason=f"{explained.reason} ({_STOPPED})")
        rest = drop_named([ended], named) or [_leave_rest(module)]
        raise UnsupportedError([*known, *rest], where="from_torch") from error


def _try_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
    """A problem where not even the module itself takes the example."""
    try:
        with keep_attributes(module), with_noise(module), _quietly(), _without_draws():
            module(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - a module is anybody's code
        return _explain_call(module, error)
    return None


def _explain_call(module: nn.Module, error: Exception) -> Problem:
    path, what = _locate(module, error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    reason = f"raises {type(error).__name__} for the example: {text}"
    return Problem(path, what, reason, "an example that the module takes: module(example)")


def _spread_arguments(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    spread: Callable[[Any], Any],
) -> dict[str, Any]:
    """What ``spread`` makes of each argument, by the names that ``forward`` has for them: what it
    takes as ``*args`` is a tuple, as ``**kwargs`` a dict."""
    signature = inspect.signature(module.forward)
    found: dict[str, Any] = {}
    for name, given in signature.bind(*args, **kwargs).arguments.items():
        match signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                found[name] = tuple(map(spread, given))
            case inspect.Parameter.VAR_KEYWORD:
                found[name] = {key: spread(item) for key, item in given.items()}
            case _:
                found[name] = spread(given)
    return found


def _find_short(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
    """An example of one axis that could not be captured: a sample, it seems, and no batch."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    if len(tensors) != 1 or tensors[0].ndim > 1:
        return None
    shape = list(tensors[0].shape)
    return Problem(
        "example_inputs",
        f"a tensor of the shape {shape}",
        "cannot be captured: the first axis of an example is the batch, and it has no other",
        f"an example [batch, ...]: example.unsqueeze(0), of shape {[1, *shape]}",
    )


@contextmanager
def _without_draws() -> Iterator[None]:
    """Without gradients, and with torch's random numbers as they were, afterwards."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch prints of a program that it cannot capture: its error says what counts."""
    log = logging.getLogger("torch.fx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _locate(module: nn.Module, error: BaseException) -> tuple[str, str]:
    """The path and class of the innermost module in whose forward an error arose, and the line."""
    paths = {id(part): path for path, part in module.named_modules()}
    path, what = "", type(module).__name__
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        owner = frame.f_locals.get("self")
        if (
            isinstance(owner, nn.Module)
            and id(owner) in paths
            and frame.f_code.co_name != "__call__"
        ):
            path = paths[id(owner)]
            file = frame.f_code.co_filename.rsplit("/", 1)[-1]
            if file != "module.py":
                what = f"{type(owner).__name__}, {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return path, what


def _explain(path: str, what: str, error: Exception) -> Problem:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    if "GuardOnDataDependent" in name or "data-dependent" in text.lower():
        fix = "compute both ways and choose by torch.where, or decide by shapes alone"
        if what.startswith("Transformer"):
            fix = "say beside the mask whether it is causal: tgt_is_causal=True, or is_causal=True"
        return Problem(
            path, what, "decides by the values of its input, which differ from batch to batch", fix
        )
    if "fake tensor" in text:
        return Problem(
            path,
            what,
            "reads a tensor behind the back of autograd, as .data does",
            "leave .data out",
        )
    if "batch" in text and ("Constraint" in name or "specialized" in text or name == "UserError"):
        return Problem(
            path,
            what,
            f"works for one size of the batch alone: {text.partition(' For more information')[0]}",
            "take the batch from x.shape[0] or x.size(0), and give no number for it; the first "
            "axis of the example is the batch",
        )
    return Problem(
        path,
        what,
        f"torch.export cannot capture it: {name}: {text}",
        "make torch.export.export(module, inputs, strict=False) work",
    )


def _name_tensors(module: nn.Module) -> dict[str, str]:
    """Each name of a parameter or buffer, and the first name of the tensor that it is."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for listed in (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in listed:
            names[name] = first.setdefault(id(tensor), name)
    return names


def list_tensors(module: nn.Module) -> tuple[dict[str, torch.Tensor], list[tuple[str, str]]]:
    """The tensors of a module by their first names, and (name in its state_dict, first name)."""
    names = _name_tensors(module)
    tensors: dict[str, torch.Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    # The keys of state_dict alone: what a module makes of its tensors there is its own affair.
    entries = [(name, names[name]) for name in module.state_dict() if name in names]
    return {name: tensors[name] for name, first in names.items() if name == first}, entries


def _check_mutations(module: nn.Module, program: ExportedProgram) -> list[Problem]:
    signature = program.graph_signature
    problems = []
    for name in getattr(signature, "parameters_to_mutate", {}).values():
        path, _, parameter = name.rpartition(".")
        what = f"{type(module.get_submodule(path)).__name__}, parameter {parameter}"
        reason = "is changed by the forward pass, and a step changes it by its gradient alone"
        problems.append(Problem(path, what, reason, "compute what is needed of it each time"))
    for name in signature.buffers_to_mutate.values():
        path, _, buffer = name.rpartition(".")
        owner = module.get_submodule(path)
        if isinstance(owner, nn.modules.batchnorm._BatchNorm):
            continue  # said once, of the layer
        problems.append(
            Problem(
                path,
                f"{type(owner).__name__}, buffer {buffer}",
                "is changed by the forward pass, and a step changes parameters alone",
                "compute it of the input each time, or make it a parameter",
            )
        )
    reason = "is changed in place by the forward pass, and the batch is committed to as it is"
    return problems + [
        Problem("", f"input {name}", reason, "work on a copy: x = x.clone()")
        for name in signature.user_inputs_to_mutate.values()
    ]


def _choose_output(
    program: ExportedProgram, output: str | int | None, problems: list[Problem]
) -> str | None:
    """The name of the output to train by."""
    names = list(program.graph_signature.user_outputs)
    if len(names) == 1 and output is None and isinstance(names[0], str):
        return names[0]
    tree = pytree.tree_unflatten(list(range(len(names))), program.call_spec.out_spec)
    number = _pick(tree, "logits" if output is None else output)
    if number is not None and isinstance(names[number], str):
        return str(names[number])
    keys = [key for key in tree if isinstance(key, str)] if isinstance(tree, Mapping) else []
    listed = " or ".join(f'output="{key}"' for key in keys if isinstance(tree[key], int))
    problems.append(
        Problem(
            "",
            f"{len(names)} outputs",
            "a model has one, of which the loss is" if output is None else f"none is {output!r}",
            f"name it: {listed or 'output=0'}",
        )
    )
    return None


def _pick(tree: Any, output: str | int) -> int | None:
    """The number of the leaf that ``output`` names, in a tree of numbers."""
    if isinstance(output, int) and isinstance(tree, Sequence) and output < len(tree):
        found = tree[output]
    elif isinstance(tree, Mapping):
        found = tree.get(output)
    else:
        found = getattr(tree, str(output), None)
    return found if isinstance(found, int) else None
