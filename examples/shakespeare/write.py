"""Write text with an exported model, character by character: write.py MODEL [--prompt TEXT].

MODEL is what `vtrain export` writes; onnxruntime computes it in floats, so that no two machines
need to write the same.  It needs onnxruntime (`make dev` installs it).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime

TEXT = Path(__file__).with_name("tinyshakespeare.txt")


class Writer:
    """A model of this folder, and the characters that its numbers stand for."""

    def __init__(self, model: Path) -> None:
        self._session = onnxruntime.InferenceSession(model)
        (given,) = self._session.get_inputs()
        self._name, self._places = given.name, int(given.shape[1])
        self._characters = sorted(set(TEXT.read_text()))

    def write(self, prompt: str, count: int, temperature: float, seed: int) -> str:
        """``count`` characters after ``prompt``; the likeliest ones where ``temperature`` is 0.

        KeyError for a character of the prompt that the text does not have.
        """
        number = {character: i for i, character in enumerate(self._characters)}
        ids, random = [number[character] for character in prompt], np.random.default_rng(seed)
        for _ in range(count):
            ids.append(self._choose(ids[-self._places :], temperature, random))
        return "".join(self._characters[i] for i in ids)

    def _choose(self, ids: list[int], temperature: float, random: np.random.Generator) -> int:
        # What stands behind the last character is not looked at: attention is causal.
        window = np.zeros((1, self._places), np.int64)
        window[0, : len(ids)] = ids
        (logits,) = self._session.run(None, {self._name: window})
        scores = logits[0, len(ids) - 1].astype(np.float64)
        if temperature == 0:
            return int(scores.argmax())
        chances = np.exp((scores - scores.max()) / temperature)
        return int(random.choice(scores.size, p=chances / chances.sum()))


def main() -> None:
    """Print the prompt and what follows it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="an ONNX file")
    parser.add_argument("--prompt", default="\n", help="what the text begins with")
    parser.add_argument("--count", type=int, default=400, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--seed", type=int, default=0, help="of the choices")
    given = parser.parse_args()
    if not given.prompt or given.temperature < 0 or given.count < 0:
        parser.error("the prompt has a character; temperature and count are not negative")
    known = set(TEXT.read_text())
    if unknown := sorted(set(given.prompt) - known):
        parser.error(f"--prompt: the text has no {unknown[0]!r}")
    print(Writer(given.model).write(given.prompt, given.count, given.temperature, given.seed))


if __name__ == "__main__":
    main()
