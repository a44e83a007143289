"""Proofs on chain: the Solidity verifier of a circuit, its compiled code, the data of calls to it.

ezkl writes the verifier, with the verifying key and the SRS's tau in it as constants.  As it comes
it can be made to accept what is no proof (:data:`GUARD`), so that it is exported only with one
condition more.  It compares commitments with nothing, so that alone it says nothing of what was
proven.  ``StatementVerifier`` does, and draws the challenge itself
(``vtrain.prove.chain.statement``).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final

from vtrain.commit.files import open_file, read_file, storing, write_atomic
from vtrain.errors import (
    EncodingError,
    MissingExtraError,
    ProofError,
    ProverError,
    SrsError,
    StorageError,
)
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import EZKL_VERSION, Call, Limits, Proof, run_ezkl
from vtrain.prove.backend.keys import find_srs
from vtrain.prove.backend.srs import Srs, identify_srs
from vtrain.prove.chain.size import MAX_CODE
from vtrain.prove.chain.statement import STATEMENT, Binding, write_statement_verifier
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.json_text import decode_json

SOLC_VERSION: Final = "0.8.20"
"""The compiler that ezkl compiles its verifiers for; code follows the version."""

VERIFIER: Final = "Halo2Verifier"

GUARD: Final = "success := and(success, eq(proof.offset, 0x64))"
"""What the verifier requires beyond what ezkl wrote: that the call has its plain layout.

ezkl's verifier draws its challenges from the proof where the call says that it lies, but computes
with the bytes at fixed places.  A call of another layout keeps two proofs apart there: one to draw
from and one, chosen afterwards, that solves the last equation.  It is accepted, for any circuit and
public values; a test makes such a call.
"""

_MODULUS: Final = f"let r := {SCALAR_FIELD}"
_CONSTANT: Final = f" R = {SCALAR_FIELD};"
_ASSIGNED: Final = re.compile(r"\br\s*(,\s*\w+\s*)*:=")
_AFTER: Final = "let success := true\n"
_LICENSE: Final = "// SPDX-License-Identifier: MIT\n"
_VERIFY_PROOF: Final = bytes.fromhex("1e8e1e13")  # verifyProof(bytes,uint256[])
_VERIFY: Final = bytes.fromhex("48b2f2a9")  # verify(bytes,bytes32,bytes,bytes)
_COMMIT: Final = bytes.fromhex("4aa3fea6")  # commitParameters(uint256[])
_COMPILER_SETTINGS: Final = {
    "optimizer": {"enabled": True, "runs": 1},
    "evmVersion": "shanghai",
    "metadata": {"bytecodeHash": "none"},
    "outputSelection": {
        "*": {"*": ["abi", "metadata", "evm.bytecode.object", "evm.deployedBytecode.object"]}
    },
}


@dataclass(frozen=True)
class Contract:
    """A compiled contract: its ABI, the code that deploys it, the code deployed."""

    name: str
    source: str
    abi: list[dict[str, Any]]
    creation: bytes
    deployed: bytes

    @property
    def size(self) -> int:
        """Bytes of the code deployed."""
        return len(self.deployed)

    @property
    def fits(self) -> bool:
        """Whether Ethereum deploys it."""
        return self.size <= MAX_CODE


@dataclass(frozen=True)
class EvmVerifier:
    """A circuit's verifier, and the contract that verifies statements with it.

    ``length`` and ``instances`` are those of its proofs, ``tensors`` the number of its commitments.
    ``insecure``: its SRS is of no public ceremony, so that whoever made it can forge.
    """

    verifier: Contract
    statement: Contract | None
    length: int
    instances: int
    tensors: int
    insecure: bool
    folder: Path

    def deploy_statement(self, verifier: bytes) -> bytes:
        """The code that deploys ``StatementVerifier`` over the verifier at an address (20 bytes).

        It deploys over no other code than that of ``verifier``.
        """
        if self.statement is None:
            raise ProofError("the export knows no circuit", where="circuit")
        if len(verifier) != 20:
            raise ProofError(f"has {len(verifier)} bytes, not 20", where="address")
        return self.statement.creation + verifier.rjust(32, b"\0")


def export_evm(
    *,
    settings: Path,
    vk: Path,
    srs: Path,
    out: Path,
    limits: Limits,
    binding: Binding | None,
    solc: Path | None = None,
) -> EvmVerifier:
    """Write a circuit's verifier into the new folder ``out``, compiled.

    There: ``Halo2Verifier`` and, where ``binding`` says of which circuit, ``StatementVerifier``,
    each as ``.sol``, ``.abi.json`` and ``.bin`` (hexadecimal code that deploys it), and
    ``evm.json``, which says what they were made of.  The settings, the key and the SRS are the
    caller's to pin: what does not belong together gives a verifier that refuses every proof, or
    worse.

    ``solc`` is the compiler (of :data:`SOLC_VERSION`), native or solc-js's ``solcjs``; without it,
    one of these on the PATH.  MissingExtraError without one, ProverError when ezkl or the compiler
    fails, SrsError and StorageError for the files, StorageError when ``out`` is there.
    """
    if out.exists():
        raise StorageError("the folder exists: name a new one", where=str(out))
    compiler = find_compiler(solc)
    known = identify_srs(srs)
    _check_srs(settings, vk, known)
    made_of = {  # first, since ezkl opens whatever has the name
        "settings_sha256": _digest(settings),
        "srs_sha256": known.sha256.hex(),
        "vk_sha256": _digest(vk),
    }
    source = write_verifier(settings=settings, vk=vk, srs=srs, limits=limits)
    notes = [
        f"By ezkl {EZKL_VERSION}, with one condition more (proof.offset), and r for its equal R."
    ]
    notes += [f"{name.replace('_', ', ')} {digest}" for name, digest in made_of.items()]
    if not known.is_ceremony:
        notes.append("INSECURE: the SRS is of no public ceremony. Whoever made it can forge.")
    length, instances = _read_shape(source)
    tensors = _count_commitments(settings)
    if binding is not None and binding.columns != tensors:
        raise ProofError(
            f"are of a circuit with {tensors} columns, the circuit has {binding.columns}",
            where=str(settings),
        )
    contracts = compile_contracts({VERIFIER: amend(source, notes)}, compiler, limits)
    if binding is not None:
        text = write_statement_verifier(binding, contracts[VERIFIER].deployed)
        contracts |= compile_contracts({STATEMENT: text}, compiler, limits)
    about = made_of | {
        "circuit": None if binding is None else binding.circuit.hex(),
        "contracts": {
            name: {
                "creation_sha256": hashlib.sha256(made.creation).hexdigest(),
                "fits": made.fits,
                "size": made.size,
            }
            for name, made in contracts.items()
        },
        "ezkl": EZKL_VERSION,
        "insecure_srs": not known.is_ceremony,
        "instances": instances,
        "k": known.k,
        "proof_bytes": length,
        "solc": SOLC_VERSION,
        "solc_settings": _COMPILER_SETTINGS,
        "tensors": tensors,
    }
    with storing(out):
        out.mkdir(parents=True)
    for name, made in contracts.items():
        write_atomic(out / f"{name}.sol", [made.source.encode()])
        write_atomic(out / f"{name}.abi.json", [_encode(made.abi)])
        write_atomic(out / f"{name}.bin", [made.creation.hex().encode() + b"\n"])
    write_atomic(out / "evm.json", [_encode(about)])
    return EvmVerifier(
        verifier=contracts[VERIFIER],
        statement=contracts.get(STATEMENT),
        length=length,
        instances=instances,
        tensors=tensors,
        insecure=not known.is_ceremony,
        folder=out,
    )


def write_verifier(*, settings: Path, vk: Path, srs: Path, limits: Limits) -> str:
    """The verifier of a circuit as ezkl writes it: **it takes forged calls** (:data:`GUARD`)."""
    with TemporaryDirectory(prefix="vtrain-evm-") as folder:
        written = Path(folder) / "verifier.sol"
        arguments = {
            "vk_path": str(vk),
            "settings_path": str(settings),
            "sol_code_path": str(written),
            "abi_path": str(Path(folder) / "abi.json"),
            "srs_path": str(srs),
            "reusable": False,
        }
        run_ezkl([Call("create_evm_verifier", arguments)], limits)
        return read_file(written, LIMITS.settings_bytes).decode()


def encode_calldata(proof: Proof) -> bytes:
    """The data of a call of ``verifyProof``, in the plain layout of the ABI."""
    tail = _encode_bytes(proof.data)
    words = b"".join(map(_word, (len(proof.instances), *proof.instances)))
    return _VERIFY_PROOF + _word(64) + _word(64 + len(tail)) + tail + words


def encode_statement_calldata(
    proof: bytes, *, claim: bytes, given: bytes, parameters: bytes
) -> bytes:
    """The data of a call of ``StatementVerifier.verify``.

    ``claim`` is a digest (32 bytes); ``given`` and ``parameters`` are commitments as in a run log,
    64 bytes each.  ``ezkl.kzg_commit`` has the coordinates the other way round, in little-endian
    hexadecimal.
    """
    if len(claim) != 32:
        raise ProofError(f"has {len(claim)} bytes, not 32", where="claim")
    tails = [_encode_bytes(data) for data in (proof, given, parameters)]
    at = 4 * 32
    proof_at, given_at, parameters_at = at, at + len(tails[0]), at + len(tails[0]) + len(tails[1])
    head = _word(proof_at) + claim + _word(given_at) + _word(parameters_at)
    return _VERIFY + head + b"".join(tails)


def encode_parameters_calldata(values: Sequence[int]) -> bytes:
    """The data of a call of ``StatementVerifier.commitParameters``, which returns P."""
    words = b"".join(_word(value % SCALAR_FIELD) for value in values)
    return _COMMIT + _word(32) + _word(len(values)) + words


def amend(source: str, notes: Sequence[str] = ()) -> str:
    """ezkl's verifier with :data:`GUARD`, shorter, and with notes at its head.

    It has the modulus twice, as the constant ``R`` and in the variable ``r``.  The compiler fetches
    the constant by a dozen bytes wherever it stands, which is hundreds of times; the variable takes
    one.  So ``r`` stands for ``R`` from where it is set, and whole steps become small enough to
    deploy.  ProverError for a text in which that, or anything else, is not as it is known to be.
    """
    for place in (_LICENSE, _AFTER, _CONSTANT, _MODULUS):
        if source.count(place) != 1:
            raise ProverError(
                f"wrote no verifier as known: {source.count(place)} times {place.strip()!r}",
                where="create_evm_verifier",
            )
    before, start, after = source.partition(_MODULUS)
    if _ASSIGNED.search(after):
        raise ProverError("wrote no verifier as known: r is set again", where="create_evm_verifier")
    shorter = before + start + re.sub(r"\bR\b", "r", after)
    head = "".join(f"// {note}\n" for note in notes)
    guarded = shorter.replace(_AFTER, f"{_AFTER}            {GUARD}\n")
    return guarded.replace(_LICENSE, _LICENSE + head)


def compile_contracts(
    sources: Mapping[str, str], solc: Path, limits: Limits
) -> dict[str, Contract]:
    """Compile contracts, each in a source of its own; ProverError has the compiler's words."""
    asked = {
        "language": "Solidity",
        "sources": {f"{name}.sol": {"content": text} for name, text in sources.items()},
        "settings": _COMPILER_SETTINGS,
    }
    text, said = _run_compiler(solc, json.dumps(asked).encode(), limits)
    try:
        answer = json.loads(text[text.index("{") :])  # solc-js says a word about SMT before it
        problems = [item for item in answer.get("errors", []) if item["severity"] == "error"]
        if problems:
            raise ProverError(problems[0]["formattedMessage"].strip(), where="solc")
        return {
            name: _read_contract(name, text, answer["contracts"][f"{name}.sol"][name])
            for name, text in sources.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        words = (said.strip() or text.strip())[:500]
        raise ProverError(f"is no answer of a compiler: {words!r}", where=str(solc)) from None


def _read_settings(path: Path) -> Any:
    try:
        return decode_json(read_file(path, LIMITS.settings_bytes), "settings")
    except EncodingError as error:
        raise ProofError(f"are no settings of ezkl's: {error.message}", where=str(path)) from error


def _check_srs(settings: Path, vk: Path, srs: Srs) -> None:
    """SrsError for an SRS that the key was not made with, as far as files beside it say so.

    A key does not name its SRS; the folder of keys that it lies in does.
    """
    try:
        k = _read_settings(settings)["run_args"]["logrows"]
    except (KeyError, TypeError) as error:
        raise ProofError("are no settings of ezkl's", where=str(settings)) from error
    if not isinstance(k, int) or srs.k < k:
        raise SrsError(f"is for k up to {srs.k}, the circuit for {k}", where="srs")
    made_with = find_srs(vk.parent)
    if made_with is not None and made_with != srs.sha256:
        raise SrsError(f"is not that of the key, {made_with.hex()}", where="srs")


def find_compiler(solc: Path | None) -> Path:
    """The compiler named, or one on the PATH; MissingExtraError without one."""
    if solc is not None:
        return solc.resolve()
    found = shutil.which("solc") or shutil.which("solcjs")
    if found is None:
        raise MissingExtraError(
            f"needs solc {SOLC_VERSION}: npm install --global solc@{SOLC_VERSION}", where="solc"
        )
    return Path(found)


def _run_compiler(solc: Path, asked: bytes, limits: Limits) -> tuple[str, str]:
    """What it writes to its two outputs; files all, as solc-js loses its way in pipes."""
    with TemporaryFile() as given, TemporaryFile() as answer, TemporaryFile() as noise:
        given.write(asked)
        given.seek(0)
        try:
            subprocess.run(  # noqa: S603 - a compiler that the caller names
                [str(solc), "--standard-json"],
                stdin=given,
                stdout=answer,
                stderr=noise,
                timeout=limits.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProverError(f"took more than {limits.seconds:g} seconds", where="solc") from None
        except OSError as error:
            raise ProverError(error.strerror or str(error), where=str(solc)) from None
        answer.seek(0)
        noise.seek(0)
        return answer.read().decode(errors="replace"), noise.read().decode(errors="replace")


def _read_contract(name: str, source: str, made: Mapping[str, Any]) -> Contract:
    version = json.loads(made["metadata"])["compiler"]["version"].partition("+")[0]
    if version != SOLC_VERSION:
        raise ProverError(f"is {version}, not {SOLC_VERSION}", where="solc")
    return Contract(
        name=name,
        source=source,
        abi=made["abi"],
        creation=bytes.fromhex(made["evm"]["bytecode"]["object"]),
        deployed=bytes.fromhex(made["evm"]["deployedBytecode"]["object"]),
    )


def _read_shape(source: str) -> tuple[int, int]:
    """Bytes and public values of the proofs that a verifier takes."""
    length = re.search(r"eq\(0x([0-9a-f]+), proof\.length\)", source)
    count = re.search(r"mstore\(0x[0-9a-f]+, 0x([0-9a-f]{64})\) // num_instances", source)
    if length is None or count is None:
        raise ProverError("wrote no shape of a proof", where="create_evm_verifier")
    return int(length[1], 16), int(count[1], 16)


def _count_commitments(settings: Path) -> int:
    try:
        return len(_read_settings(settings)["module_sizes"]["polycommit"])
    except (KeyError, TypeError) as error:
        raise ProverError(f"are no settings of ezkl's: {error}", where=str(settings)) from None


def _digest(path: Path) -> str:
    with open_file(path, LIMITS.verifying_key_bytes) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _encode(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=2) + "\n").encode()


def _word(value: int) -> bytes:
    return value.to_bytes(32)


def _encode_bytes(data: bytes) -> bytes:
    return _word(len(data)) + data + bytes(-len(data) % 32)
