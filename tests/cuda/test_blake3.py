"""BLAKE3 on the device: published vectors, boundaries of its tree, many tensors in one launch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.host_device import KERNELS, HostDevice, HostDeviceError
from tests.cuda.single import Array, claim, run_case, run_launches
from tests.engines.operator_cases import Attrs, Case
from tests.engines.steps import make_step
from vtrain.engines.cuda import digest as plans
from vtrain.engines.cuda.device import Call, Pointer, Slot
from vtrain.engines.cuda.digest import (
    FILE,
    GROUP,
    THREADS,
    encode_places,
    plan_digests,
    plan_state_root,
    plan_tensor_digest,
    split_state_leaf,
)
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import (
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lowering import FAST
from vtrain.engines.cuda.program import Program
from vtrain.spec import domains, merkle
from vtrain.spec.commitment import compute_record_leaf, compute_state_leaf, compute_state_root
from vtrain.spec.number import STORAGE
from vtrain.wire.graph import Node, Ref, TensorType
from vtrain.wire.opening import StateLeaf

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
DIGEST = TensorType("u8", (32,), 0, 0, 255)

CHUNK = 1024
SIZES = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048, 2049, 3072, 3073)
"""Lengths at the boundaries of pieces, blocks, stages, chunks and small trees."""
TREES = tuple(
    chunks * CHUNK + more
    for chunks in (THREADS - 1, THREADS, THREADS + 1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP)
    for more in (0, 1)
)
"""Lengths at the boundaries of blocks of threads and of launches."""


def fill(length: int, seed: int = 0) -> Array:
    """Bytes without a pattern that a wrong order of chunks could keep."""
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def vector_bytes(length: int) -> Array:
    return (np.arange(length) % 251).astype(np.uint8)


def readable(length: int) -> tuple[Launch, ...]:
    return (one_thread_each(FILE, "tensor_digest", 1, Operand(0), length, Output()),)


def digest(device: HostDevice, launches: Sequence[Launch], data: Array) -> bytes:
    return run_launches(device, launches, [data], DIGEST).output.tobytes()


def launch_with(device: HostDevice, launches: Sequence[Launch], pointers: dict[Arg, int]) -> None:
    """Launch; constants and scratch join the ``pointers``."""
    for launch in launches:
        slots: list[Slot] = []
        for arg in launch.args:
            if isinstance(arg, int):
                slots.append(arg)
                continue
            if arg not in pointers:
                content = arg.data if isinstance(arg, Constant) else b""
                nbytes = arg.nbytes if isinstance(arg, Scratch) else len(content)
                pointers[arg] = device.allocate(nbytes)
                device.write(pointers[arg], content)
            slots.append(Pointer(pointers[arg]))
        device.launch(Call(launch.file, launch.kernel, launch.grid, launch.block, tuple(slots)))


def digest_many(device: HostDevice, tensors: Sequence[Array]) -> list[bytes]:
    """Digests by one plan for all."""
    datas = [device.allocate(tensor.nbytes) for tensor in tensors]
    for address, tensor in zip(datas, tensors, strict=True):
        device.write(address, tensor.reshape(-1).view(np.uint8))
    outs = [device.allocate(32) for _ in tensors]
    table = encode_places(list(zip(datas, outs, strict=True)))
    places = Operand(0)
    pointers: dict[Arg, int] = {places: device.allocate(len(table))}
    device.write(pointers[places], table)
    launches = plan_digests([tensor.nbytes for tensor in tensors], places)
    launch_with(device, launches, pointers)
    device.synchronize()
    found = [device.read(out, 32) for out in outs]
    for address in (*datas, *outs, *pointers.values()):
        device.free(address)
    return found


def test_readable_kernel_gives_the_published_digests(host_device: HostDevice) -> None:
    for case in json.loads((VECTORS / "blake3.json").read_text())["cases"]:
        data = vector_bytes(case["input_len"])
        expected = bytes.fromhex(case["hash"])[:32]
        assert digest(host_device, readable(data.size), data) == expected, data.size


def test_fast_kernels_give_the_published_digests(host_device: HostDevice) -> None:
    for case in json.loads((VECTORS / "blake3.json").read_text())["cases"]:
        data = vector_bytes(case["input_len"])
        expected = bytes.fromhex(case["hash"])[:32]
        assert digest(host_device, plan_tensor_digest(data.size), data) == expected, data.size


@pytest.mark.parametrize("length", SIZES + TREES)
def test_fast_digest_of_boundary_lengths(host_device: HostDevice, length: int) -> None:
    data = fill(length, seed=length)
    assert digest(host_device, plan_tensor_digest(length), data) == blake3(data.tobytes()).digest()


def test_readable_digest_of_boundary_lengths(host_device: HostDevice) -> None:
    for length in SIZES + TREES:
        data = fill(length, seed=length)
        assert digest(host_device, readable(length), data) == blake3(data.tobytes()).digest()


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=9))
def test_many_tensors_share_launches(lengths: list[int]) -> None:
    device = HostDevice()
    tensors = [fill(length, seed=i) for i, length in enumerate(lengths)]
    found = digest_many(device, tensors)
    assert found == [blake3(tensor.tobytes()).digest() for tensor in tensors]
    device.close()


def test_trees_of_different_heights_share_launches(host_device: HostDevice) -> None:
    lengths = [0, GROUP * CHUNK + 5, 3, 2 * GROUP * CHUNK, CHUNK, 130 * CHUNK - 1, 1]
    tensors = [fill(length, seed=i) for i, length in enumerate(lengths)]
    found = digest_many(host_device, tensors)
    assert found == [blake3(tensor.tobytes()).digest() for tensor in tensors]


def test_trees_of_many_launches(host_device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 values a block instead of 1024, small tensors take as many launches as huge ones."""
    text = (KERNELS / FILE).read_text()
    small = text.replace(f"DIGEST_GROUP = {GROUP}", "DIGEST_GROUP = 4")
    assert small != text
    host_device.add_source("small_groups.cu", small)
    monkeypatch.setattr(plans, "FILE", "small_groups.cu")
    monkeypatch.setattr(plans, "GROUP", 4)
    lengths = [chunks * CHUNK - 3 for chunks in (*range(1, 35), 63, 64, 65, 255, 256, 257)]
    tensors = [fill(length, seed=length) for length in lengths]
    assert len(plan_digests(lengths, Operand(0))) == 1 + 5
    found = digest_many(host_device, tensors)
    assert found == [blake3(tensor.tobytes()).digest() for tensor in tensors]


def test_launches_are_few() -> None:
    kernels = [launch.kernel for launch in plan_digests([4 * 2**30, 7, 2**20], Operand(0))]
    assert kernels == ["digest_chunks", "digest_trees", "digest_trees", "digest_trees"]
    assert [launch.kernel for launch in plan_digests([1024] * 50, Operand(0))] == ["digest_chunks"]
    assert plan_digests([], Operand(0)) == ()


def test_no_byte_is_left_out(host_device: HostDevice) -> None:
    length = 5 * CHUNK + 77
    data = fill(length)
    whole = digest(host_device, plan_tensor_digest(length), data)
    for place in (0, 15, 16, 1023, 1024, 3 * CHUNK, length - 1):
        changed = data.copy()
        changed[place] ^= 1
        assert digest(host_device, plan_tensor_digest(length), changed) != whole, place


def test_garbage_behind_a_tensor_does_not_count(host_device: HostDevice) -> None:
    for length in (1, 15, 17, 1000, 1025):
        data = fill(length + 40)
        found = digest(host_device, plan_tensor_digest(length), data)
        assert found == blake3(data[:length].tobytes()).digest()


def test_a_launch_with_an_integer_for_a_pointer_is_refused(host_device: HostDevice) -> None:
    call = Call(FILE, "digest_trees", (1, 1, 1), (THREADS, 1, 1), (1, 2, 3, 4))
    with pytest.raises(HostDeviceError, match="takes 'ippp'"):
        host_device.launch(call)


PROBE = """
#include "blake3.cuh"
#include "philox.cuh"

extern "C" __global__ void hash_under_context(i64 count, const u8* context, i64 context_bytes,
                                              const u8* data, i64 length, u8* out) {
    if (INDEX() >= count) return;
    blake3::Hasher hasher;
    hasher.start_domain(context, context_bytes);
    hasher.add(data, length);
    hasher.finish_digest(out);
}

extern "C" __global__ void draw_words(i64 count, const u32* counter, const u32* key, u32* out) {
    if (INDEX() >= count) return;
    const Words4 given = {{counter[0], counter[1], counter[2], counter[3]}};
    const Words4 words = philox(given, key[0], key[1]);
    for (int i = 0; i < 4; i++) out[i] = words.word[i];
}
"""


def hash_under_context(device: HostDevice, context: str, data: Array) -> bytes:
    device.add_source("probe.cu", PROBE)
    encoded = Constant(context.encode())
    args = (encoded, len(encoded.data), Operand(0), data.size, Output())
    launch = one_thread_each("probe.cu", "hash_under_context", 1, *args)
    return run_launches(device, [launch], [data], DIGEST).output.tobytes()


def test_published_derive_key_digests(host_device: HostDevice) -> None:
    content = json.loads((VECTORS / "blake3.json").read_text())
    for case in content["cases"]:
        data = vector_bytes(case["input_len"])
        found = hash_under_context(host_device, content["context_string"], data)
        assert found == bytes.fromhex(case["derive_key"])[:32], data.size


def test_every_domain_and_long_contexts(host_device: HostDevice) -> None:
    data = fill(100)
    for domain in (*domains.TREE_DOMAINS, *domains.DIGEST_DOMAINS, "", "x" * 64, "y" * 2000):
        expected = domains.compute_domain_hash(domain, data.tobytes())
        assert hash_under_context(host_device, domain, data) == expected, domain


def test_philox_vectors(host_device: HostDevice) -> None:
    host_device.add_source("probe.cu", PROBE)
    content = json.loads((VECTORS / "philox.json").read_text())
    words = TensorType("i32", (4,), 0, *STORAGE["i32"])
    for case in content["random123"] + content["more"]:
        inputs = [np.array(case[name], np.uint32) for name in ("counter", "key")]
        launch = one_thread_each("probe.cu", "draw_words", 1, Operand(0), Operand(1), Output())
        found = run_launches(host_device, [launch], inputs, words).output.view(np.uint32)
        assert found.tolist() == case["output"]


def hash_node(device: HostDevice, op: str, attrs: Attrs, inputs: Sequence[Array]) -> bytes:
    return run_case(device, Case(op, attrs, tuple(inputs)), DIGEST).output.tobytes()


def as_array(digest: bytes) -> Array:
    return np.frombuffer(digest, np.uint8)


def test_state_vectors(host_device: HostDevice) -> None:
    content = json.loads((VECTORS / "state.json").read_text())
    hashes = []
    for item in content["leaves"]:
        attrs: Attrs = {
            "name": item["name"],
            "dtype": item["dtype"],
            "shape": tuple(item["shape"]),
            "exponent": item["exponent"],
        }
        content_digest = bytes.fromhex(item["digest"])
        before, after = split_state_leaf(Node("leaf", "state_leaf", attrs, (), (DIGEST,)))
        encoding = bytes.fromhex(item["encoding"])
        assert before + content_digest + after == b"\0" + encoding
        hashes.append(hash_node(host_device, "state_leaf", attrs, [as_array(content_digest)]))
        assert hashes[-1] == merkle.compute_leaf_hash(domains.STATE_TREE, encoding)
    for count, root in enumerate(content["roots"]):
        leaves = [as_array(leaf) for leaf in hashes[:count]]
        assert hash_node(host_device, "state_root", {}, leaves).hex() == root


def test_state_root_of_any_number_of_leaves(host_device: HostDevice) -> None:
    leaves = [fill(32, seed) for seed in range(67)]
    for count in (*range(20), 31, 32, 33, 63, 64, 65, 66, 67):
        expected = compute_state_root([leaf.tobytes() for leaf in leaves[:count]])
        assert hash_node(host_device, "state_root", {}, leaves[:count]) == expected, count


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 64, 255, 256, 257, 600])
def test_fast_state_root(host_device: HostDevice, count: int) -> None:
    leaves = [fill(32, seed) for seed in range(count)]
    launches = FAST["state_root"](
        Node("root", "state_root", {}, (), (DIGEST,)), [claim(leaf) for leaf in leaves]
    )
    assert launches[-1].kernel == "state_root_levels"
    found = run_launches(host_device, launches, leaves, DIGEST).output.tobytes()
    assert found == compute_state_root([leaf.tobytes() for leaf in leaves])


@pytest.mark.parametrize("count", [0, 1, 5, 17])
def test_a_whole_state_takes_two_launches(host_device: HostDevice, count: int) -> None:
    digests = [fill(32, seed) for seed in range(count)]
    names = ["größe/β", "x" * 300, "y" * 1200, *(f"layer{i}" for i in range(count))][:count]
    leaves = [
        StateLeaf(name, "i32", (7, i), i - 3, content.tobytes())
        for i, (name, content) in enumerate(zip(names, digests, strict=True))
    ]
    nodes = [Node(leaf.name, "state_leaf", describe(leaf), (Ref(0),), (DIGEST,)) for leaf in leaves]
    launches = plan_state_root(nodes, Operand(0))
    assert len(launches) == (2 if count else 1)
    datas = [device_copy(host_device, content) for content in digests]
    places = encode_places([(data, data) for data in datas])
    table = device_copy(host_device, np.frombuffer(places, np.uint8))
    pointers: dict[Arg, int] = {Operand(0): table, Output(): host_device.allocate(32)}
    launch_with(host_device, launches, pointers)
    host_device.synchronize()
    found = host_device.read(pointers[Output()], 32)
    for address in (*datas, *pointers.values()):
        host_device.free(address)
    assert found == compute_state_root([compute_state_leaf(leaf) for leaf in leaves])


def test_a_commitment_of_a_step_takes_few_launches(host_device: HostDevice) -> None:
    program = Program(make_step("mlp", "mse").graph)
    plan = Kernels(host_device).plan_step(program)
    jobs = [job for job in plan.jobs if job.commit_only]
    kernels = [launch.kernel for job in jobs for launch in job.launches]
    assert kernels == ["digest_chunks", "digest_trees", "state_leaves", "state_root_levels"]


def describe(leaf: StateLeaf) -> Attrs:
    return {
        "name": leaf.name,
        "dtype": leaf.dtype,
        "shape": leaf.shape,
        "exponent": leaf.exponent,
    }


def device_copy(device: HostDevice, content: Array) -> int:
    address = device.allocate(content.nbytes)
    device.write(address, content)
    return address


def test_record_vectors(host_device: HostDevice) -> None:
    content = json.loads((VECTORS / "log.json").read_text())
    for item in content["records"]:
        root = bytes.fromhex(item["state_root"])
        step, every = item["step"], item["step"] if root else item["step"] + 1
        inputs = [
            np.asarray(step, np.int64),
            as_array(bytes.fromhex(item["batch_digest"])),
            np.asarray(int(item["loss"]), np.int64),
            as_array(root or bytes(32)),
        ]
        found = hash_node(host_device, "record", {"commit_every": every}, inputs)
        expected = merkle.compute_leaf_hash(domains.RUN_LOG, bytes.fromhex(item["encoding"]))
        assert found == expected, step


@pytest.mark.parametrize("magnitude", [0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32])
def test_integers_of_a_record_have_their_shortest_form(
    host_device: HostDevice, magnitude: int
) -> None:
    digest_of_batch, root = fill(32, 1), fill(32, 2)
    for step, loss in ((magnitude, -magnitude), (-1 - magnitude, magnitude)):
        inputs = [np.asarray(step, np.int64), digest_of_batch, np.asarray(loss, np.int64), root]
        found = hash_node(host_device, "record", {"commit_every": 3}, inputs)
        written = root.tobytes() if step % 3 == 0 else b""
        assert found == compute_record_leaf(step, digest_of_batch.tobytes(), loss, written)
