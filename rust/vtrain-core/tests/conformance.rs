//! The Rust twins against the vectors that the Python spec wrote (`tests/vectors`).

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use serde_json::Value as Json;
use vtrain_core::cbor::{self, EncodeError, Value};
use vtrain_core::domains::{Domain, Hash};
use vtrain_core::merkle::{self, MerkleTree};
use vtrain_core::{order, philox, referee, tensor_digest};

use common::{bytes, list, number, text, vectors};

fn hash(json: &Json) -> Hash {
    bytes(json).try_into().unwrap()
}

fn hashes(json: &Json) -> Vec<Hash> {
    list(json).iter().map(hash).collect()
}

fn fill(length: u64) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

fn untagged(json: &Json) -> Value {
    let (kind, content) = json.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "int" => Value::Int(text(content).parse().unwrap()),
        "bytes" => Value::Bytes(bytes(content)),
        "text" => Value::Text(text(content).to_owned()),
        "list" => Value::Array(list(content).iter().map(untagged).collect()),
        "map" => Value::Map(
            content
                .as_object()
                .unwrap()
                .iter()
                .map(|(k, v)| (k.clone(), untagged(v)))
                .collect(),
        ),
        other => panic!("unknown kind {other}"),
    }
}

fn assert_verdict(data: &[u8], expected: &Json, name: &str) {
    match cbor::decode(data) {
        Ok(value) => {
            assert!(expected.is_null(), "{name} was accepted");
            assert_eq!(cbor::encode(&value).unwrap(), data, "{name}");
        }
        Err(error) => {
            assert_eq!(
                error.offset as u64,
                number(&expected["offset"]),
                "{name}: {error}"
            );
            assert_eq!(
                error.reason.to_string(),
                text(&expected["reason"]),
                "{name}"
            );
        }
    }
}

#[test]
fn cbor_accepts() {
    for case in list(&vectors("cbor.json")["accept"]) {
        let (data, value) = (bytes(&case["hex"]), untagged(&case["value"]));
        assert_eq!(cbor::encode(&value).unwrap(), data, "{}", case["name"]);
        let decoded = cbor::decode(&data).unwrap();
        assert_eq!(cbor::encode(&decoded).unwrap(), data, "{}", case["name"]);
    }
}

#[test]
fn cbor_rejects_for_the_same_reason_at_the_same_byte() {
    for case in list(&vectors("cbor.json")["reject"]) {
        assert_verdict(&bytes(&case["hex"]), case, text(&case["name"]));
    }
}

#[test]
fn cbor_judges_every_bit_flip_alike() {
    let flips = &vectors("cbor.json")["flips"];
    let base = bytes(&flips["hex"]);
    assert_eq!(list(&flips["verdicts"]).len(), 8 * base.len());
    for (bit, expected) in list(&flips["verdicts"]).iter().enumerate() {
        let mut data = base.clone();
        data[bit / 8] ^= 1 << (bit % 8);
        assert_verdict(&data, expected, &format!("bit {bit}"));
    }
}

#[test]
fn cbor_encodes_nothing_it_would_not_decode() {
    let mut deep = Value::Array(vec![]);
    for _ in 0..cbor::MAX_DEPTH {
        deep = Value::Array(vec![deep]);
    }
    assert_eq!(cbor::encode(&deep), Err(EncodeError::TooDeep));
    let twice = Value::Map(vec![
        ("a".into(), Value::Int(0)),
        ("a".into(), Value::Int(1)),
    ]);
    assert_eq!(cbor::encode(&twice), Err(EncodeError::DuplicateKey));
    for int in [-(1 << 63) - 1, 1 << 64] {
        assert_eq!(cbor::encode(&Value::Int(int)), Err(EncodeError::IntRange));
    }
    assert_eq!(
        encoded_zeros(cbor::MAX_ITEMS - 1).map(|value| cbor::encode(&value).is_ok()),
        Ok(true)
    );
    let many = encoded_zeros(cbor::MAX_ITEMS).unwrap_err();
    assert_eq!(
        (many.reason, many.offset),
        (cbor::Reason::TooMany, 5 + cbor::MAX_ITEMS - 1)
    );
    let huge = vec![0; cbor::MAX_SIZE + 1];
    assert_eq!(
        cbor::decode(&huge).unwrap_err().reason,
        cbor::Reason::TooLong
    );
}

fn encoded_zeros(count: usize) -> Result<Value, cbor::DecodeError> {
    let mut data = vec![0; 5 + count];
    data[0] = 0x9a;
    data[1..5].copy_from_slice(&(count as u32).to_be_bytes());
    cbor::decode(&data)
}

#[test]
fn domains() {
    let table = vectors("domains.json");
    assert_eq!(table.as_object().unwrap().len(), Domain::all().count());
    for domain in Domain::all() {
        let expected = &table[domain.context()];
        assert_eq!(domain.hash(&[]), hash(&expected["empty"]));
        assert_eq!(domain.hash(&[b"a", b"", b"bc"]), hash(&expected["abc"]));
    }
}

#[test]
fn tensor_digests_equal_blake3s_own_vectors() {
    for case in list(&vectors("blake3.json")["cases"]) {
        let data = fill(number(&case["input_len"]));
        let expected = bytes(&case["hash"])[..32].to_vec();
        assert_eq!(tensor_digest::digest(&data).to_vec(), expected);
        assert_eq!(tensor_digest::digest_parallel(&data).to_vec(), expected);
    }
    let large = fill((1 << 20) + 1);
    let digest = tensor_digest::digest(&large);
    assert_eq!(tensor_digest::digest_parallel(&large), digest);
    assert_eq!(
        tensor_digest::digests_parallel(&[&large, &[]]),
        [digest, tensor_digest::digest(&[])]
    );
}

#[test]
fn chunk_openings() {
    for case in list(&vectors("chunk_opening.json")) {
        let length = number(&case["length"]);
        let (data, digest) = (fill(length), hash(&case["digest"]));
        assert_eq!(
            list(&case["paths"]).len() as u64,
            tensor_digest::chunk_count(length)
        );
        for (index, expected) in list(&case["paths"]).iter().enumerate() {
            let index = index as u64;
            let path = tensor_digest::chunk_path(&data, index).unwrap();
            assert_eq!(path, hashes(expected));
            let chunk = tensor_digest::chunk_bytes(&data, index).unwrap();
            let verify = |length, index, chunk: &[u8], path: &[Hash]| {
                tensor_digest::verify_chunk(&digest, length, index, chunk, path)
            };
            assert!(verify(length, index, chunk, &path));
            assert!(!verify(length, index + 1, chunk, &path));
            assert!(!verify(length, u64::MAX, chunk, &path));
            assert!(!verify(length, index, &[chunk, b"\0"].concat(), &path));
            assert!(!verify(
                length,
                index,
                chunk,
                &[path.as_slice(), &[[0; 32]]].concat()
            ));
            for level in 0..path.len() {
                let mut changed = path.clone();
                changed[level][31] ^= 0x80;
                assert!(!verify(length, index, chunk, &changed));
                assert!(!verify(length, index, chunk, &path[..level]));
            }
            for byte in 0..chunk.len() {
                let mut changed = chunk.to_vec();
                changed[byte] ^= 1;
                assert!(!verify(length, index, &changed, &path));
            }
        }
        let chunks = tensor_digest::chunk_count(length);
        assert!(tensor_digest::chunk_path(&data, chunks).is_err());
        assert!(tensor_digest::chunk_bytes(&data, chunks).is_err());
    }
}

#[test]
fn openings_of_large_tensors_hash_siblings_in_parallel() {
    let data = fill((1 << 20) + 5);
    let digest = tensor_digest::digest(&data);
    for index in [0, 1, 511, 512, 1023, 1024] {
        let path = tensor_digest::chunk_path(&data, index).unwrap();
        let chunk = tensor_digest::chunk_bytes(&data, index).unwrap();
        assert!(tensor_digest::verify_chunk(
            &digest,
            data.len() as u64,
            index,
            chunk,
            &path
        ));
    }
}

#[test]
fn merkle_trees() {
    let file = vectors("merkle.json");
    let domain = Domain::from_context(text(&file["domain"])).unwrap();
    let leaves: Vec<Vec<u8>> = list(&file["leaves"]).iter().map(bytes).collect();
    let roots = hashes(&file["roots"]);
    let mut tree = MerkleTree::new(domain);
    assert_eq!(tree.root(0).unwrap(), roots[0]);
    for (leaf, root) in leaves.iter().zip(&roots[1..]) {
        tree.append(leaf);
        assert_eq!(tree.root(tree.size()).unwrap(), *root);
    }
    for (size, root) in roots.iter().enumerate() {
        assert_eq!(
            tree.root(size as u64).unwrap(),
            *root,
            "an old root, size {size}"
        );
    }
    for case in list(&file["inclusion"]) {
        let (size, index) = (number(&case["size"]), number(&case["index"]));
        let path = tree.inclusion_path(index, size).unwrap();
        assert_eq!(path, hashes(&case["path"]));
        let (leaf, root) = (&leaves[index as usize], &roots[size as usize]);
        let verify = |index, size, path: &[Hash]| {
            merkle::verify_inclusion(domain, root, leaf, index, size, path)
        };
        assert!(verify(index, size, &path));
        assert!(!verify(index + 1, size, &path));
        assert!(!verify(size, size, &path));
        assert!(!verify(
            index,
            size,
            &[path.as_slice(), &[[0; 32]]].concat()
        ));
        for level in 0..path.len() {
            let mut changed = path.clone();
            changed[level][0] ^= 1;
            assert!(!verify(index, size, &changed));
            assert!(!verify(index, size, &path[..level]));
        }
    }
    for case in list(&file["consistency"]) {
        let (old, new) = (number(&case["old_size"]), number(&case["new_size"]));
        let path = tree.consistency_path(old, new).unwrap();
        assert_eq!(path, hashes(&case["path"]), "{old} in {new}");
        let verify = |old_root: &Hash, new_root: &Hash, path: &[Hash]| {
            merkle::verify_consistency(domain, old_root, new_root, old, new, path)
        };
        let (old_root, new_root) = (&roots[old as usize], &roots[new as usize]);
        assert!(verify(old_root, new_root, &path), "{old} in {new}");
        assert!(!verify(&[0; 32], new_root, &path));
        assert!(old == 0 || !verify(old_root, &[0; 32], &path));
        assert!(!verify(
            old_root,
            new_root,
            &[path.as_slice(), &[[0; 32]]].concat()
        ));
        for level in 0..path.len() {
            let mut changed = path.clone();
            changed[level][0] ^= 1;
            assert!(
                !verify(old_root, new_root, &changed),
                "{old} in {new}, {level}"
            );
            assert!(
                !verify(old_root, new_root, &path[..level]),
                "{old} in {new}, {level}"
            );
        }
    }
    assert!(tree.root(34).is_err());
    assert!(tree.inclusion_path(3, 3).is_err());
    assert!(tree.inclusion_path(0, 34).is_err());
    assert!(tree.consistency_path(4, 3).is_err());
    assert!(tree.consistency_path(0, 34).is_err());
}

#[test]
fn merkle_roots_differ_by_domain() {
    let file = vectors("merkle.json");
    for (context, root) in file["roots_of_five_by_domain"].as_object().unwrap() {
        let mut tree = MerkleTree::new(Domain::from_context(context).unwrap());
        for leaf in &list(&file["leaves"])[..5] {
            tree.append(&bytes(leaf));
        }
        assert_eq!(tree.root(5).unwrap(), hash(root));
    }
}

#[test]
fn merkle_root_of_fixed_rows() {
    let fixed = &vectors("merkle.json")["fixed"];
    let (rows, length) = (number(&fixed["rows"]), number(&fixed["row_length"]));
    let mut tree = MerkleTree::new(Domain::from_context(text(&fixed["domain"])).unwrap());
    tree.extend_fixed(&fill(rows * length), length as usize);
    assert_eq!(tree.root(rows).unwrap(), hash(&fixed["root"]));
}

#[test]
fn philox_known_answers() {
    let file = vectors("philox.json");
    for case in list(&file["random123"]).iter().chain(list(&file["more"])) {
        let words = |json: &Json| -> Vec<u32> {
            list(json)
                .iter()
                .map(|word| number(word).try_into().unwrap())
                .collect()
        };
        let counter = words(&case["counter"]).try_into().unwrap();
        let key = words(&case["key"]).try_into().unwrap();
        assert_eq!(
            philox::philox(counter, key).to_vec(),
            words(&case["output"])
        );
    }
}

#[test]
fn order_of_samples() {
    for case in list(&vectors("order.json")["batches"]) {
        let (n, batch) = (number(&case["n"]), number(&case["batch"]));
        let (seed, step) = (text(&case["seed"]).parse(), text(&case["step"]).parse());
        let (seed, step): (u64, u64) = (seed.unwrap(), step.unwrap());
        let expected: Vec<i64> = list(&case["indices"])
            .iter()
            .map(|index| index.as_i64().unwrap())
            .collect();
        assert_eq!(
            order::batch_indices(seed, n, batch, step).unwrap(),
            expected
        );
        for (slot, index) in expected.iter().enumerate() {
            let position = step * batch + slot as u64;
            assert_eq!(
                order::sample_index(seed, n, position).unwrap() as i64,
                *index
            );
        }
    }
}

#[test]
fn order_refuses_what_has_none() {
    use order::OrderError::{Batch, Position, Samples};
    assert_eq!(order::batch_indices(0, 0, 1, 0), Err(Samples(0)));
    assert_eq!(
        order::batch_indices(0, (1 << 48) + 1, 1, 0),
        Err(Samples((1 << 48) + 1))
    );
    assert_eq!(order::batch_indices(0, 5, 0, 0), Err(Batch(0)));
    assert_eq!(
        order::batch_indices(0, 5, u64::MAX, 0),
        Err(Batch(u64::MAX))
    );
    assert_eq!(order::batch_indices(0, 5, 2, u64::MAX), Err(Position));
    assert_eq!(
        order::batch_indices(0, 5, 2, (1 << 62) - 1).map(|batch| batch.len()),
        Ok(2)
    );
    assert_eq!(order::batch_indices(0, 5, 2, 1 << 62), Err(Position));
    assert_eq!(order::sample_index(0, 5, 1 << 63), Err(Position));
    assert_eq!(order::sample_index(0, 0, 0), Err(Samples(0)));
}

fn splice(data: &[u8], change: &Json) -> Vec<u8> {
    let head = number(&change["head"]) as usize;
    let tail = data.len() - number(&change["tail"]) as usize;
    [&data[..head], &bytes(&change["middle"]), &data[tail..]].concat()
}

fn sides(json: &Json) -> Vec<bool> {
    list(json).iter().map(|side| number(side) == 1).collect()
}

#[test]
fn statements_are_judged_as_the_law_says() {
    for entry in list(&vectors("statements.json")) {
        let data = bytes(&entry["statement"]);
        let (ruling, wanted) = (referee::judge(&data).unwrap(), &entry["ruling"]);
        assert_eq!(ruling.after, bytes(&wanted["after"]));
        assert_eq!(ruling.blocks, number(&wanted["blocks"]));
        assert_eq!(ruling.right.to_vec(), sides(&wanted["right"]));
        assert_eq!(ruling.what, text(&wanted["what"]));
        for change in list(&entry["also"]) {
            let ruling = referee::judge(&splice(&data, change)).unwrap();
            assert_eq!(ruling.right.to_vec(), sides(&change["right"]));
        }
        for change in list(&entry["refused"]) {
            let refusal = referee::judge(&splice(&data, change)).unwrap_err();
            assert_eq!(refusal.place(), text(&change["where"]), "{}", ruling.what);
        }
    }
}
