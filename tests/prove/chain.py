"""A local Ethereum (revm): contracts deployed, calls and their gas."""

from __future__ import annotations

from dataclasses import dataclass

from pyrevm import EVM

from vtrain.prove.backend.ezkl import Proof
from vtrain.prove.chain.evm import EvmVerifier, encode_calldata

SENDER = "0x" + "11" * 20
BLOCK_GAS = 30_000_000


@dataclass(frozen=True)
class Outcome:
    """What a transaction gave: its output, or None where it was reverted; the gas it took."""

    output: bytes | None
    gas: int
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether it returned true."""
        return self.output == (1).to_bytes(32)


class Chain:
    """An empty chain by the rules of Shanghai, EIP-170's limit of 24,576 bytes of code included."""

    def __init__(self) -> None:
        self._evm = EVM(gas_limit=BLOCK_GAS, spec_id="SHANGHAI")
        self._evm.set_balance(SENDER, 10**30)

    def deploy(self, creation: bytes) -> tuple[bytes, int]:
        """Address (20 bytes) and gas; RuntimeError for code that the chain does not take."""
        address = self._evm.deploy(SENDER, creation)
        return bytes.fromhex(address.removeprefix("0x")), self._gas()

    def call(self, address: bytes, data: bytes, gas: int = BLOCK_GAS) -> Outcome:
        """A transaction whose changes are dropped."""
        try:
            output = self._evm.message_call(SENDER, f"0x{address.hex()}", calldata=data, gas=gas)
        except RuntimeError as error:
            return Outcome(None, self._gas(), str(error))
        return Outcome(bytes(output), self._gas())

    def _gas(self) -> int:
        result = self._evm.result
        return 0 if result is None else int(result.gas_used)


@dataclass(frozen=True)
class Gas:
    """Gas of transactions: base fee, call data and all."""

    deploy: int
    deploy_statement: int
    verify: int
    verify_statement: int
    calldata: int
    """Bytes of the call of the verifier, no gas."""


def measure_gas(made: EvmVerifier, proof: Proof, call: bytes) -> Gas:
    """Deploy both contracts and verify a proof that holds, with each; ``call`` is the data of the
    call of ``StatementVerifier``."""
    chain = Chain()
    verifier, deploy = chain.deploy(made.verifier.creation)
    statement, deploy_statement = chain.deploy(made.deploy_statement(verifier))
    data = encode_calldata(proof)
    plain = chain.call(verifier, data)
    whole = chain.call(statement, call)
    if not (plain.holds and whole.holds):
        raise RuntimeError("the proof does not hold on chain")
    return Gas(deploy, deploy_statement, plain.gas, whole.gas, len(data))
