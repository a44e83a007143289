"""Running ``torch.export`` on a module, in training semantics, and what can be said of the result.

The batch is symbolic, so that nothing of the captured program depends on the example's.  Problems
are collected, and named by the path of the module they are in.
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from vtrain.errors import Problem, UnsupportedError
from vtrain.graph.from_torch.compare import compare, find_hooks
from vtrain.graph.from_torch.plain import with_plain_attention

_EXAMPLES: Final = 2
"""Samples in the example that is traced: torch takes a batch of one for a constant."""
_UNINITIALISED: Final = "has no parameters yet: it takes its sizes from its first input"


@dataclass(frozen=True)
class Capture:
    """A captured program: ``input`` and ``output`` are nodes of its graph.

    ``parameters`` and ``buffers`` map placeholders to names in the module, of which tied ones have
    the first.  ``notes`` say what was changed to capture it.  ``problems`` are those that leave
    something to look at.  ``example`` are the arguments by place and by name that were traced, and
    ``number`` is that of the output among all leaves of what the module gives.
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
        """The module's own output of ``x``, in training, as its tensors are."""
        args, kwargs = pytree.tree_map(
            lambda one: x if isinstance(one, torch.Tensor) else one, self.example
        )
        with _in_training(self.module, []), _without_cache(self.module, []), torch.no_grad():
            found: torch.Tensor = pytree.tree_leaves(self.module(*args, **kwargs))[self.number]
        # A module may switch gradients on again.
        return found.detach()


def capture(module: nn.Module, example_inputs: object, output: str | int | None = None) -> Capture:
    """Export ``module`` for ``example_inputs``: a tensor, a tuple, or a dict of arguments by name.

    One of them is a tensor, whose first axis is the batch.  ``output`` names the output to train by
    where there are several (default: ``logits``).  UnsupportedError, where nothing can be captured,
    names all that is known by then.
    """
    args, kwargs = _read_example(example_inputs)
    problems = _check_wrapper(module) or _check_module(module)
    notes: list[str] = []
    if problems:
        raise UnsupportedError(problems, where="from_torch")
    changed: list[Problem] = []
    with _in_training(module, notes), _without_cache(module, notes):
        with with_plain_attention(module), _without_overwriting(module):
            program = _export(module, args, kwargs)
        changed += _check_mutations(module, program)
        chosen = _choose_output(program, output, problems)
        if chosen is not None and not changed:
            changed += compare(module, program, (args, kwargs), chosen, notes)
            changed += _check_constants(module, program)
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
    )


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


def _check_wrapper(module: nn.Module) -> list[Problem]:
    """A module around the one that is meant, whose parameters have other names."""
    inside = "_orig_mod" if hasattr(module, "_orig_mod") else "module"
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if inside == "module" and not isinstance(module, wrappers):
        return []
    fix = f"the module inside: model.{inside}"
    return [Problem("", type(module).__name__, "wraps the module that is to be trained", fix)]


def _check_module(module: nn.Module) -> list[Problem]:
    """What is known to stand in the way before anything is run."""
    lazy = [
        Problem(path, type(part).__name__, _UNINITIALISED, "call the module on an example once")
        for path, part in module.named_modules()
        if any(
            is_lazy(tensor)
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
        )
    ]
    if lazy:
        return lazy
    problems = []
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            reason = "is compiled by torch.jit, behind which torch.export sees nothing"
            return [Problem(path, type(part).__name__, reason, "the nn.Module that it was made of")]
    for path, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            reason = "has sparse gradients, and a step has those of the whole table"
            problems.append(Problem(path, type(part).__name__, reason, "sparse=False"))
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            reason = "scales rows in the forward pass, and a step changes them by their gradients"
            problems.append(Problem(path, type(part).__name__, reason, "max_norm=None"))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            reason = "is on the device meta, without values"
            problems.append(Problem(name, "tensor", reason, "load or initialise its values"))
        elif tensor.dtype.is_complex:
            reason, fix = "is of complex numbers", "its real and its imaginary part, as floats"
            problems.append(Problem(name, "tensor", reason, fix))
        elif tensor.device.type != "cpu":
            reason = f"is on the device {tensor.device}"
            problems.append(Problem(name, "tensor", reason, "move the module: module.cpu()"))
    for path, part in module.named_modules():
        averaging = isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None
        if averaging and part.track_running_stats:
            reason = "takes the mean of all batches so far (momentum=None), by a count that changes"
            problems.append(Problem(path, type(part).__name__, reason, "momentum=0.1"))
    return problems + _check_memory(module) + find_hooks(module)


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
    if one.device.type != "cpu" or other.device.type != "cpu":
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


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
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
        short = _find_short(args, kwargs)
        if short is not None:
            raise UnsupportedError([short], where="from_torch") from error
        path, what = _locate(module, error)
        raise UnsupportedError([_explain(path, what, error)], where="from_torch") from error


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
    problems.append(
        Problem(
            "",
            f"{len(names)} outputs",
            "a model has one, of which the loss is" if output is None else f"none is {output!r}",
            'name it, as output="logits" or output=0',
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
