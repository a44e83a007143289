"""Names that nobody knows, of keys, tables and choices: they are refused here, with the known name
that each seems to stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

from vtrain.errors import TaskError

_ELSEWHERE: Final = {
    **dict.fromkeys(("lr", "rate", "lr_max", "max_lr"), "learning_rate"),
    **dict.fromkeys(("epochs", "epoch", "num_epochs"), "steps"),
    **dict.fromkeys(("batch_size", "batchsize"), "batch"),
    **dict.fromkeys(("optim", "optimiser"), "optimizer"),
    **dict.fromkeys(("wd", "l2", "decay"), "weight_decay"),
    **dict.fromkeys(("beta", "beta1", "beta2"), "betas"),
    **dict.fromkeys(("clip", "max_norm", "grad_clip", "max_grad_norm"), "clip_norm"),
    **dict.fromkeys(("warmup_steps", "warm_up", "num_warmup_steps"), "warmup"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "schedule"),
    **dict.fromkeys(("eos_token_id", "eos_token", "eot_token", "eot", "eos"), "end_of_text"),
    **dict.fromkeys(("pad_token_id", "pad_token", "padding_idx", "pad_id", "pad"), "padding"),
    **dict.fromkeys(("ignore_index", "ignore_label"), "ignore"),
    "epsilon": "eps",
    "freeze": "frozen",
}
"""What other programs call keys."""
_LONGEST: Final = 100
"""Characters of a name that are compared with those known: comparing takes their square."""


def refuse_unknown_keys(table: Mapping[str, object], known: Sequence[str], where: str) -> None:
    """TaskError for the first key, of a value or of a table, that is not ``known``; says which one
    it is like, rather one that is missing."""
    for key, value in table.items():
        if key in known:
            continue
        elsewhere = _ELSEWHERE.get(_plain(key))
        absent = [name for name in known if name not in table]
        like = _find_like(key, absent) or _find_like(key, known)
        meant, hint = like, f", and {like} is missing: did you mean that?" if like else ""
        if elsewhere in known and elsewhere is not None:
            meant, hint = elsewhere, f": it is called {elsewhere} here"
            if meant == "steps":
                hint = ": give steps, which are epochs * samples / batch"
        if meant in table:
            meant, hint = "", f", and {meant} is there too: leave one of the two out"
        noun = "table" if isinstance(value, Mapping) else "key"
        raise TaskError(
            f"unknown {noun}{hint}", where=f"{where}.{key}" if where else key, meant=meant
        )


def _find_like(key: str, names: Sequence[str]) -> str:
    """The name whose letters are most like those of ``key``; "" where none is."""
    like = difflib.get_close_matches(_plain(key), names, 1)
    return like[0] if like else ""


def _plain(name: str) -> str:
    return name[:_LONGEST].strip().lower().replace("-", "_").replace(" ", "_")


def refuse_choice(
    value: object,
    options: Iterable[str],
    where: str,
    words: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> NoReturn:
    """TaskError for a value that is none of the ``options``.  It says which one was meant: by
    ``words``, which have the option and what goes with it, or by its letters."""
    known = [*options]
    meant, also = "", ""
    if isinstance(value, str):
        word = value.lower()[:_LONGEST]
        like = difflib.get_close_matches(word, known, 1)
        meant, also = words.get(word, (like[0] if like else "", ""))
    hint = f': take "{meant}"{" with " if also else ""}{also}' if meant else ""
    raise TaskError(f"must be one of {', '.join(known)}{hint}", where=where, meant=meant, also=also)
