// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

interface IHalo2Verifier {
    function verifyProof(
        bytes calldata proof,
        uint256[] calldata instances
    ) external view returns (bool);
}

/// @notice Verifies that a proof of a circuit holds, and for which committed tensors.
/// @dev A verifier alone says that a proof holds for some tensors.  Their KZG commitments are the
/// first bytes of the proof; here they must be those that the caller names.  Where these come from
/// (a signed run log, a contract's storage) is the caller's to settle: never from whoever proves.
contract CommitmentBound {
    /// @notice The verifier of the circuit.
    IHalo2Verifier public immutable verifier;

    /// @notice How many tensors the circuit commits to.
    uint256 public immutable tensors;

    /// @notice The proof is for other tensors than those named.
    error WrongCommitments();

    /// @notice A contract that compares nothing is none.
    error NothingCommitted();

    constructor(IHalo2Verifier verifier_, uint256 tensors_) {
        if (tensors_ == 0) revert NothingCommitted();
        verifier = verifier_;
        tensors = tensors_;
    }

    /// @notice Returns true, or reverts: without a reason where the verifier did.
    /// @param proof The proof.
    /// @param instances Its public values.
    /// @param commitments 64 bytes for each tensor, inputs before outputs: x and y of its
    /// commitment's point, big-endian, as in a run log.
    function verify(
        bytes calldata proof,
        uint256[] calldata instances,
        bytes calldata commitments
    ) external view returns (bool) {
        uint256 length = 64 * tensors;
        if (proof.length < length) revert WrongCommitments();
        if (keccak256(proof[:length]) != keccak256(commitments)) revert WrongCommitments();
        // Encoded anew: whatever the layout of this call, the verifier sees the plain one.
        return verifier.verifyProof(proof, instances);
    }
}
