// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

interface IHalo2Verifier {
    function verifyProof(
        bytes calldata proof,
        uint256[] calldata instances
    ) external view returns (bool);
}

/// @notice Verifies that a proof shows a statement about committed columns.
/// @dev A statement is a claim, the KZG commitments to the given columns, and what is public of it.
/// The circuit is fixed: its constants stand below.  A proof begins with the commitments to all
/// columns: given, private, computed, late, answers.  The given ones must be those of the statement,
/// and the answers what they must be.  The prover's own (private, late) may be any.  The computed
/// column holds the public values and ends with the challenge, which is drawn here: from the circuit,
/// the claim and all that was settled before.
contract StatementVerifier {
    /// @notice The digest of the circuit.
    bytes32 public constant CIRCUIT = 0;

    /// @dev Where the commitments of each kind end in a proof, in bytes.
    uint256 private constant GIVEN_END = 0;
    uint256 private constant PRIVATE_END = 0;
    uint256 private constant COMPUTED_END = 0;
    uint256 private constant LATE_END = 0;
    uint256 private constant ANSWERS_END = 0;

    /// @dev Hash of the commitments to the answers.
    bytes32 private constant ANSWERS = 0;

    /// @dev The commitments to the computed columns without the challenge, of a circuit without
    /// parameters; else empty.
    bytes private constant FIXED = hex"";

    /// @dev The commitment to the constants, and for each parameter the point that it multiplies; empty
    /// where there are none, or too many.
    bytes private constant POINTS = hex"";

    /// @dev The point that the challenge multiplies, zeros for a circuit without challenge.
    uint256 private constant CHALLENGE_X = 0;
    uint256 private constant CHALLENGE_Y = 0;

    /// @dev Whether the challenge is drawn from the computed columns too: not if it is all they hold.
    bool private constant DRAWN_FROM_COMPUTED = false;

    /// @dev Hash of the code of the circuit's verifier.
    bytes32 private constant VERIFIER_CODE = 0;

    /// @dev Hash of the domain of challenges.
    bytes32 private constant DOMAIN = 0;

    /// @dev The order of the curve's first group.
    uint256 private constant R =
        21888242871839275222246405745257275088548364400416034343698204186575808495617;

    /// @dev The order of the field of coordinates.
    uint256 private constant Q =
        21888242871839275222246405745257275088696311157297823662689037894645226208583;

    /// @dev 2^256 modulo R.
    uint256 private constant WRAP =
        6350874878119819312338956282401532410528162663560392320966563075034087161851;

    /// @notice The circuit's Halo2Verifier.
    IHalo2Verifier public immutable verifier;

    /// @notice The verifier is none of this circuit.
    error WrongVerifier();

    /// @notice The proof is shorter than the commitments that it begins with.
    error WrongLength();

    /// @notice The proof is of other given columns.
    error WrongGiven();

    /// @notice The proof is of other public values, or of a challenge that was not drawn.
    error WrongComputed();

    /// @notice The proof is of other answers.
    error WrongAnswers();

    /// @notice What is public of the statement is of another length or number, or no point.
    error WrongParameters();

    constructor(IHalo2Verifier verifier_) {
        if (address(verifier_).codehash != VERIFIER_CODE) revert WrongVerifier();
        verifier = verifier_;
    }

    /// @notice Returns true, or reverts: without a reason where the verifier did.
    /// @param proof The proof.
    /// @param claim The digest of the claim that the proof is made for.
    /// @param given The commitments to the given columns, 64 bytes each: x and y, big-endian.
    /// @param parameters The commitments to the computed columns with zero in the challenge's place:
    /// they say which public values the statement has.  Empty for a circuit without parameters.
    function verify(
        bytes calldata proof,
        bytes32 claim,
        bytes calldata given,
        bytes calldata parameters
    ) external view returns (bool) {
        if (proof.length < ANSWERS_END) revert WrongLength();
        if (keccak256(proof[:GIVEN_END]) != keccak256(given)) revert WrongGiven();
        bytes memory computed = FIXED.length == 0 ? parameters : FIXED;
        if (parameters.length + FIXED.length != COMPUTED_END - PRIVATE_END) {
            revert WrongParameters();
        }
        if (CHALLENGE_Y != 0) {
            bytes memory drawn = DRAWN_FROM_COMPUTED ? computed : bytes("");
            addChallenge(computed, draw(claim, proof[:PRIVATE_END], drawn));
        }
        if (keccak256(proof[PRIVATE_END:COMPUTED_END]) != keccak256(computed)) {
            revert WrongComputed();
        }
        if (keccak256(proof[LATE_END:ANSWERS_END]) != ANSWERS) revert WrongAnswers();
        // Encoded anew: whatever the layout of this call, the verifier sees the plain one.
        return verifier.verifyProof(proof, new uint256[](0));
    }

    /// @notice What `verify` takes as `parameters`, of a circuit with few.
    /// @param values The parameters in the circuit's order, negative ones plus R.
    function commitParameters(uint256[] calldata values) external view returns (bytes memory) {
        bytes memory points = POINTS;
        if (points.length != 64 * (values.length + 1)) revert WrongParameters();
        uint256 x;
        uint256 y;
        assembly {
            x := mload(add(points, 0x20))
            y := mload(add(points, 0x40))
        }
        for (uint256 i = 0; i < values.length; i++) {
            if (values[i] >= R) revert WrongParameters();
            uint256 pointX;
            uint256 pointY;
            assembly {
                let at := add(points, mul(0x40, add(i, 1)))
                pointX := mload(add(at, 0x20))
                pointY := mload(add(at, 0x40))
            }
            (x, y) = addMultiple(x, y, pointX, pointY, values[i]);
        }
        return abi.encodePacked(x, y);
    }

    /// @dev The challenge: keccak256(0 || D || m) and keccak256(1 || D || m) modulo R, as 64 bytes.
    function draw(
        bytes32 claim,
        bytes calldata own,
        bytes memory computed
    ) private pure returns (uint256) {
        bytes memory message =
            abi.encodePacked(bytes1(0x00), DOMAIN, CIRCUIT, claim, own, computed);
        uint256 high = uint256(keccak256(message));
        message[0] = 0x01;
        return addmod(mulmod(high, WRAP, R), uint256(keccak256(message)), R);
    }

    /// @dev Puts the challenge into the last of commitments.
    function addChallenge(bytes memory computed, uint256 challenge) private view {
        uint256 x;
        uint256 y;
        assembly {
            let end := add(computed, mload(computed))
            x := mload(sub(end, 0x20))
            y := mload(end)
        }
        // A precompile would take all gas for what is no point.
        uint256 cube = mulmod(mulmod(x, x, Q), x, Q);
        if (x >= Q || y >= Q || mulmod(y, y, Q) != addmod(cube, 3, Q)) revert WrongParameters();
        (x, y) = addMultiple(x, y, CHALLENGE_X, CHALLENGE_Y, challenge);
        assembly {
            let end := add(computed, mload(computed))
            mstore(sub(end, 0x20), x)
            mstore(end, y)
        }
    }

    /// @dev (x, y) + factor (pointX, pointY), by the precompiles of EIP-196.
    function addMultiple(
        uint256 x,
        uint256 y,
        uint256 pointX,
        uint256 pointY,
        uint256 factor
    ) private view returns (uint256 sumX, uint256 sumY) {
        bool done;
        assembly {
            let at := mload(0x40)
            mstore(at, pointX)
            mstore(add(at, 0x20), pointY)
            mstore(add(at, 0x40), factor)
            done := staticcall(gas(), 7, at, 0x60, at, 0x40)
            mstore(add(at, 0x40), x)
            mstore(add(at, 0x60), y)
            done := and(done, staticcall(gas(), 6, at, 0x80, at, 0x40))
            sumX := mload(at)
            sumY := mload(add(at, 0x20))
        }
        if (!done) revert WrongParameters();
    }
}
