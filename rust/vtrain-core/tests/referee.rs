//! Leaf rules against the vectors and against the engine's kernels; the referee against liars.
#![allow(clippy::unwrap_used)] // a failure is a failure

mod common;

use std::collections::BTreeMap;

use serde_json::Value as Json;
use vtrain_core::cbor::{self, Value};
use vtrain_core::domains::{Domain, Hash};
use vtrain_core::gemm::{Gemm, Path};
use vtrain_core::graph::{Attr, Node, Ref, TensorType};
use vtrain_core::merkle::{self, MerkleTree};
use vtrain_core::number::Dtype;
use vtrain_core::ops::commitment::{self, StateLeaf};
use vtrain_core::ops::{Buffer, Form, apply_node};
use vtrain_core::referee::whole::{self, Whole};
use vtrain_core::referee::{
    Chunk, Input, Leaf, MAX_CHUNKS, Member, Opened, Reader, Refusal, Row, Ruling, Statement, Stop,
    Tokens, Tree, input_forms, judge,
};
use vtrain_core::tensor_digest::{self, ChunkTree};

use common::{bytes, list, number, text, vectors};

// --- numbers, tensors and files

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn hash(&mut self) -> Hash {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// Uniform in `bits` bits with a sign.
    fn value(&mut self, bits: u32) -> i64 {
        (self.next() as i64) >> (63 - bits)
    }

    fn extreme(&mut self) -> i64 {
        let choices = [
            0,
            1,
            -1,
            i64::MAX,
            i64::MIN,
            1 << 62,
            255,
            -32768,
            self.next() as i64,
        ];
        choices[self.below(choices.len())]
    }
}

/// A tensor in memory.
struct Tensor {
    form: Form,
    data: Buffer,
}

impl Tensor {
    fn new(dtype: Dtype, shape: &[usize], values: impl IntoIterator<Item = i64>) -> Self {
        let form = Form::new(dtype, shape.to_vec()).unwrap();
        let mut data = Buffer::new(form.byte_len()).unwrap();
        let size = dtype.size();
        let mut count = 0;
        let bytes: &mut [u8] = data.write(form.byte_len());
        for (to, value) in bytes.chunks_exact_mut(size).zip(values) {
            to.copy_from_slice(&value.to_le_bytes()[..size]);
            count += 1;
        }
        assert_eq!(count, form.size());
        Self { form, data }
    }

    fn random(random: &mut Random, dtype: Dtype, shape: &[usize], bits: u32) -> Self {
        let size = shape.iter().product();
        let values: Vec<i64> = (0..size).map(|_| random.value(bits)).collect();
        Self::new(dtype, shape, values)
    }

    fn bytes(&self) -> &[u8] {
        self.data.read(self.form.byte_len())
    }

    fn digest(&self) -> Hash {
        tensor_digest::digest(self.bytes())
    }

    fn element(&self, index: u64) -> &[u8] {
        let size = self.form.dtype.size();
        &self.bytes()[index as usize * size..][..size]
    }
}

fn numbers(json: &Json) -> Vec<u64> {
    list(json).iter().map(number).collect()
}

fn tensor(json: &Json) -> Tensor {
    let shape: Vec<usize> = list(&json["shape"])
        .iter()
        .map(|x| number(x) as usize)
        .collect();
    let values = list(&json["values"]).iter().map(|value| match value {
        Json::String(digits) => digits.parse().unwrap(),
        value => value.as_i64().unwrap(),
    });
    Tensor::new(
        Dtype::from_name(text(&json["dtype"])).unwrap(),
        &shape,
        values,
    )
}

// --- nodes

fn int(value: impl Into<i128>) -> Value {
    Value::Int(value.into())
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

fn encode_node(node: &Node) -> Vec<u8> {
    let attr = |attr: &Attr| match attr {
        Attr::Int(value) => Value::Int(*value),
        Attr::Text(text) => Value::Text(text.clone()),
        Attr::Bytes(bytes) => Value::Bytes(bytes.clone()),
        Attr::Ints(items) => Value::Array(items.iter().map(|&item| Value::Int(item)).collect()),
    };
    let attrs = node
        .attrs
        .iter()
        .map(|(name, value)| (name.clone(), attr(value)));
    let input = |r: &Ref| Value::Array(vec![int(r.node as i64), int(r.output as i64)]);
    let output = |t: &TensorType| {
        let shape = t.shape.iter().map(|&extent| int(extent as i64));
        map([
            ("dtype", Value::Text(t.dtype.name().into())),
            ("exponent", int(t.exponent)),
            ("hi", int(t.hi)),
            ("lo", int(t.lo)),
            ("shape", Value::Array(shape.collect())),
        ])
    };
    cbor::encode(&map([
        ("attrs", Value::Map(attrs.collect())),
        (
            "inputs",
            Value::Array(node.inputs.iter().map(input).collect()),
        ),
        ("name", Value::Text(node.name.clone())),
        ("op", Value::Text(node.op.clone())),
        (
            "outputs",
            Value::Array(node.outputs.iter().map(output).collect()),
        ),
    ]))
    .unwrap()
}

fn type_of(form: &Form) -> TensorType {
    TensorType {
        dtype: form.dtype,
        shape: form.shape.clone(),
        exponent: 0,
        lo: 0,
        hi: 0,
    }
}

fn ints(items: &[i64]) -> Attr {
    Attr::Ints(items.iter().map(|&item| item.into()).collect())
}

// --- one application of an operator, with all that it reads

struct Case {
    name: String,
    node: Node,
    sources: Vec<Node>,
    /// Of a `state`, its value alone.
    tensors: Vec<Tensor>,
    table: Vec<u8>,
    row: usize,
}

impl Case {
    /// An operator on these inputs, that puts out a tensor of this type.
    fn new(
        op: &str,
        attrs: &[(&str, Attr)],
        tensors: Vec<Tensor>,
        dtype: Dtype,
        shape: &[usize],
    ) -> Self {
        let source = |(i, tensor): (usize, &Tensor)| Node {
            name: format!("input {i}"),
            op: "input".into(),
            attrs: BTreeMap::new(),
            inputs: vec![],
            outputs: vec![type_of(&tensor.form)],
        };
        Self {
            name: op.into(),
            node: Node {
                name: "disputed".into(),
                op: op.into(),
                attrs: attrs
                    .iter()
                    .map(|(name, attr)| ((*name).into(), attr.clone()))
                    .collect(),
                inputs: (0..tensors.len())
                    .map(|node| Ref { node, output: 0 })
                    .collect(),
                outputs: vec![type_of(&Form::new(dtype, shape.to_vec()).unwrap())],
            },
            sources: tensors.iter().enumerate().map(source).collect(),
            tensors,
            table: vec![],
            row: 0,
        }
    }

    fn leaf(&self) -> Leaf {
        let forms = input_forms(&self.node, &self.sources).unwrap();
        Leaf::new(&self.node, &forms).unwrap()
    }

    fn digests(&self) -> Vec<Hash> {
        self.tensors.iter().map(Tensor::digest).collect()
    }

    /// Runs `work` with a reader of everything.
    fn read<R>(&self, work: impl FnOnce(&mut Whole<'_>) -> R) -> R {
        let slices: Vec<_> = self
            .tensors
            .iter()
            .map(|tensor| tensor.data.slice(tensor.form.dtype, tensor.form.size()))
            .collect();
        work(&mut Whole {
            inputs: &slices,
            digests: &self.digests(),
            table: &self.table,
            row: self.row,
            tokens: None,
        })
    }

    fn states(&self, leaf: &Leaf, element: u64) -> Vec<u8> {
        self.read(|reader| whole::states(leaf, element, reader))
            .unwrap()
    }

    fn reads(&self, leaf: &Leaf, element: u64, block: u64) -> whole::Reads {
        self.read(|reader| whole::reads(leaf, element, block, reader))
            .unwrap()
    }

    /// Output of the engine's kernel.
    fn apply(&self) -> Tensor {
        let inputs: Vec<_> = self
            .tensors
            .iter()
            .map(|t| (t.form.clone(), t.data.slice(t.form.dtype, t.form.size())))
            .collect();
        let mut gemm = Gemm::new(Path::best()).unwrap();
        let (form, data) = apply_node(&self.node, &inputs, &mut gemm).unwrap();
        Tensor { form, data }
    }

    /// Every element folds to what `expected` has, block by block, from few chunks.
    fn check(&self, expected: &Tensor) {
        let leaf = self.leaf();
        let size = 8 * leaf.width();
        for element in 0..expected.form.size() as u64 {
            let states = self.states(&leaf, element);
            assert_eq!(
                states.len() as u64,
                leaf.blocks() * size as u64,
                "{}",
                self.name
            );
            let last = leaf.decode_state(&states[states.len() - size..]).unwrap();
            let value = leaf.finish(&last).unwrap();
            assert_eq!(value, expected.element(element), "{} {element}", self.name);
            if self.node.op == "state_root" || leaf.blocks() > 40 && element > 3 {
                continue;
            }
            for block in 0..leaf.blocks() {
                let reads = self.reads(&leaf, element, block);
                let chunks: usize = reads.chunks.iter().map(Vec::len).sum();
                assert!(
                    chunks as u64 <= MAX_CHUNKS,
                    "{} reads {chunks} chunks",
                    self.name
                );
            }
        }
    }
}

/// The cases of `ops/OP.json`, by name, as `leaf.json` has them, with the output by the law.
fn operator_cases() -> Vec<(Case, Json, Tensor)> {
    let file = vectors("leaf.json");
    let mut out = Vec::new();
    for entry in list(&file["operators"]) {
        let op = text(&entry["op"]);
        let cases = vectors(&format!("ops/{op}.json"));
        let case = list(&cases["cases"])
            .iter()
            .find(|case| case["name"] == entry["case"])
            .unwrap();
        let mut tensors: Vec<Tensor> = list(&case["inputs"]).iter().map(tensor).collect();
        if op == "state" {
            tensors.push(tensor(&case["bound"]));
        }
        let rows: Vec<Vec<u8>> = entry["rows"]
            .as_array()
            .map(|rows| rows.iter().map(bytes).collect())
            .unwrap_or_default();
        let decode = |json: &Json| Node::decode(&bytes(json)).unwrap();
        let case_of = Case {
            name: format!("{op} {}", text(&entry["case"])),
            node: decode(&entry["node"]),
            sources: list(&entry["sources"]).iter().map(decode).collect(),
            tensors,
            row: rows.first().map_or(0, Vec::len),
            table: rows.concat(),
        };
        out.push((case_of, entry.clone(), tensor(&case["output"])));
    }
    out
}

/// Values as README.md of the vectors defines them.
fn spread(position: u64, tensor: &TensorType) -> Tensor {
    let size: usize = tensor.shape.iter().product();
    let range = (i128::from(tensor.hi) - i128::from(tensor.lo) + 1) as u64;
    let values = (0..size as u64).map(|i| {
        let scattered = (i.wrapping_mul(2_654_435_761) + 40503 * position) & 0xffff_ffff;
        (scattered.wrapping_mul(range) >> 32) as i64 + tensor.lo
    });
    Tensor::new(tensor.dtype, &tensor.shape, values)
}

fn assert_vector(case: &Case, entry: &Json) {
    let leaf = case.leaf();
    assert_eq!(leaf.terms(), number(&entry["terms"]), "{}", case.name);
    assert_eq!(
        leaf.block_length(),
        number(&entry["block_length"]),
        "{}",
        case.name
    );
    assert_eq!(
        leaf.width() as u64,
        number(&entry["width"]),
        "{}",
        case.name
    );
    for item in list(&entry["elements"]) {
        let element = number(&item["element"]);
        assert_eq!(
            case.states(&leaf, element),
            bytes(&item["states"]),
            "{} {element}",
            case.name
        );
        let blocks = list(&item["reads"]);
        assert_eq!(blocks.len() as u64, leaf.blocks());
        for (block, expected) in (0..).zip(blocks) {
            let reads = case.reads(&leaf, element, block);
            let chunks: Vec<Vec<u64>> = list(&expected["chunks"]).iter().map(numbers).collect();
            assert_eq!(reads.chunks, chunks, "{} {element} {block}", case.name);
            assert_eq!(
                reads.rows,
                numbers(&expected["rows"]),
                "{} {element}",
                case.name
            );
        }
    }
}

#[test]
fn leaf_rules_equal_their_vectors() {
    let mut operators = std::collections::BTreeSet::new();
    for (case, entry, _) in operator_cases() {
        assert_vector(&case, &entry);
        operators.insert(case.node.op);
    }
    let folder = format!("{}/../../tests/vectors/ops", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(operators.len(), files, "every operator that has vectors");
    for entry in list(&vectors("leaf.json")["folds"]) {
        let decode = |json: &Json| Node::decode(&bytes(json)).unwrap();
        let sources: Vec<Node> = list(&entry["sources"]).iter().map(decode).collect();
        let case = Case {
            name: text(&entry["name"]).to_owned(),
            node: decode(&entry["node"]),
            tensors: (0..)
                .zip(&sources)
                .map(|(i, s)| spread(i, &s.outputs[0]))
                .collect(),
            sources,
            table: vec![],
            row: 0,
        };
        assert!(case.leaf().blocks() > 1, "{}", case.name);
        assert_vector(&case, entry);
    }
}

#[test]
fn every_element_of_every_operator_folds_to_the_law() {
    for (case, _, output) in operator_cases() {
        case.check(&output);
    }
}

fn window(kernel: [i64; 2], strides: [i64; 2], pads: [i64; 4]) -> Vec<(&'static str, Attr)> {
    vec![
        ("kernel", ints(&kernel)),
        ("strides", ints(&strides)),
        ("pads", ints(&pads)),
    ]
}

/// Folds of several blocks, small enough to fold every element.
fn long_cases() -> Vec<Case> {
    let mut random = Random(1);
    let mut draw = |dtype, shape: &[usize], bits| Tensor::random(&mut random, dtype, shape, bits);
    let flags = |a: i64, b: i64| {
        [
            ("transpose_a", Attr::Int(a.into())),
            ("transpose_b", Attr::Int(b.into())),
        ]
    };
    use Dtype::{I16, I32, I64, U8};
    let overlapping = window([3, 3], [1, 1], [1, 0, 2, 1]);
    let wide = window([6, 6], [2, 1], [5, 0, 3, 2]);
    let with_shape = |window: &[(&'static str, Attr)], shape: [i64; 4]| {
        let mut attrs = window.to_vec();
        attrs.push(("shape", ints(&shape)));
        attrs
    };
    let shift = |shift: i64| [("shift", Attr::Int(shift.into()))];
    vec![
        Case::new(
            "matmul",
            &flags(1, 0),
            vec![draw(I16, &[300, 5], 15), draw(I16, &[300, 700], 15)],
            I64,
            &[5, 700],
        ),
        Case::new(
            "matmul",
            &flags(0, 1),
            vec![draw(I16, &[2, 9000], 15), draw(I16, &[3, 9000], 15)],
            I64,
            &[2, 3],
        ),
        Case::new(
            "matmul",
            &flags(1, 1),
            vec![draw(I16, &[300, 3], 15), draw(I16, &[4, 300], 15)],
            I64,
            &[3, 4],
        ),
        Case::new(
            "matmul",
            &flags(0, 0),
            vec![draw(I16, &[2, 1], 15), draw(I16, &[1, 3], 15)],
            I64,
            &[2, 3],
        ),
        Case::new(
            "column_sum",
            &[],
            vec![draw(I16, &[100, 600], 15)],
            I64,
            &[600],
        ),
        Case::new(
            "column_sum",
            &[],
            vec![draw(I64, &[5, 20, 3], 40)],
            I64,
            &[3],
        ),
        Case::new("row_sum", &[], vec![draw(I32, &[2, 20000], 31)], I64, &[2]),
        Case::new("row_max", &[], vec![draw(I32, &[2, 20000], 31)], I32, &[2]),
        Case::new("sum", &[], vec![draw(U8, &[40000], 7)], I64, &[]),
        Case::new(
            "square_sum",
            &shift(3),
            vec![draw(I16, &[3, 40000], 15)],
            I64,
            &[],
        ),
        Case::new(
            "square_sum",
            &shift(-9),
            vec![draw(I16, &[700], 15)],
            I64,
            &[],
        ),
        Case::new(
            "sum_pool",
            &wide,
            vec![draw(I16, &[2, 7, 8, 3], 15)],
            I64,
            &[2, 5, 5, 3],
        ),
        Case::new(
            "max_pool",
            &wide,
            vec![draw(I16, &[2, 7, 8, 3], 15)],
            I16,
            &[2, 5, 5, 3],
        ),
        Case::new(
            "sum_pool_grad",
            &with_shape(&wide, [2, 7, 8, 3]),
            vec![draw(I32, &[2, 5, 5, 3], 31)],
            I64,
            &[2, 7, 8, 3],
        ),
        Case::new(
            "col2im",
            &with_shape(&wide, [2, 7, 8, 3]),
            vec![draw(I16, &[50, 108], 15)],
            I64,
            &[2, 7, 8, 3],
        ),
        Case::new(
            "max_pool_grad",
            &overlapping,
            vec![draw(I16, &[2, 6, 5, 2], 15), draw(I16, &[2, 5, 6, 2], 1)],
            I64,
            &[2, 5, 6, 2],
        ),
        Case::new(
            "max_pool_grad",
            &wide,
            vec![draw(I16, &[1, 5, 5, 2], 15), draw(I16, &[1, 7, 8, 2], 3)],
            I64,
            &[1, 7, 8, 2],
        ),
        Case::new(
            "max_pool_grad",
            &window([2, 2], [2, 2], [0, 0, 0, 0]),
            vec![draw(I16, &[2, 3, 2, 2], 15), draw(I16, &[2, 6, 5, 2], 1)],
            I64,
            &[2, 6, 5, 2],
        ),
    ]
}

#[test]
fn folds_of_several_blocks_equal_the_engine() {
    let cases = long_cases();
    for case in &cases {
        case.check(&case.apply());
    }
    let several = cases.iter().filter(|case| case.leaf().blocks() > 1).count();
    assert!(several >= 11, "{several}");
}

#[test]
fn a_maximum_in_the_padding_takes_the_gradient_with_it() {
    let attrs = window([2, 2], [1, 1], [1, 1, 1, 1]);
    let x = Tensor::new(Dtype::I16, &[1, 2, 2, 1], [-32768, -32768, -32768, 5]);
    let grad = Tensor::new(Dtype::I16, &[1, 3, 3, 1], 1..10);
    let case = Case::new(
        "max_pool_grad",
        &attrs,
        vec![grad, x],
        Dtype::I64,
        &[1, 2, 2, 1],
    );
    case.check(&case.apply());
}

#[test]
fn values_that_fit_nothing_are_no_values() {
    let sum = Case::new(
        "sum",
        &[],
        vec![Tensor::new(Dtype::I64, &[2], [i64::MAX, 1])],
        Dtype::I64,
        &[],
    );
    assert!(sum.states(&sum.leaf(), 0).is_empty());
    // Within a block a sum may leave int64 and come back.
    let values = [i64::MAX, i64::MAX, i64::MIN, i64::MIN];
    let sum = Case::new(
        "sum",
        &[],
        vec![Tensor::new(Dtype::I64, &[4], values)],
        Dtype::I64,
        &[],
    );
    assert_eq!(sum.states(&sum.leaf(), 0), (-2i64).to_le_bytes());

    let p = Tensor::new(Dtype::I16, &[1, 2], [-32768, 7]);
    let labels = Tensor::new(Dtype::I64, &[1], [-3]);
    let case = Case::new("sub_one_hot", &[], vec![p, labels], Dtype::I16, &[1, 2]);
    let leaf = case.leaf();
    let finish = |element| {
        let states = case.states(&leaf, element);
        leaf.finish(&leaf.decode_state(&states).unwrap())
    };
    assert_eq!(finish(0), None);
    assert_eq!(finish(1), Some(7i16.to_le_bytes().to_vec()));
    assert_eq!(leaf.decode_state(&[0; 7]), None);
    assert_eq!(leaf.decode_state(&[0; 16]), None);
}

// --- statements

/// A graph and a trace with one disputed node, of which anything can be opened.
struct World<'a> {
    case: &'a Case,
    leaf: Leaf,
    graph: MerkleTree,
    nodes: Vec<Vec<u8>>,
    trace: MerkleTree,
    /// Steps of the trace before the disputed one.
    step: u64,
    index: u64,
    samples: MerkleTree,
    state: MerkleTree,
    state_leaf: Vec<u8>,
    /// The first leaf of that state.
    other_leaf: Vec<u8>,
    chunks: Vec<ChunkTree>,
}

const STATE_PLACE: u64 = 2;

impl<'a> World<'a> {
    fn new(case: &'a Case, step: u64) -> Self {
        let mut random = Random(step + 7);
        let mut nodes: Vec<Vec<u8>> = case.sources.iter().map(encode_node).collect();
        let index = nodes.len() as u64;
        nodes.push(encode_node(&case.node));
        nodes.push(encode_node(&next_state(case)));
        nodes.push(encode_node(&case.node)); // something after it
        let digests = case.digests();
        let count = nodes.len() as u64;
        let mut trace = MerkleTree::new(Domain::Trace);
        for position in 0..(step + 2) * count {
            let input = match step {
                0 => position.checked_sub(step * count),
                _ if case.node.op == "state" => {
                    (position == (step - 1) * count + index + 1).then_some(0)
                }
                _ => position.checked_sub(step * count),
            };
            let known = input.and_then(|input| digests.get(input as usize));
            trace.append(&known.copied().unwrap_or_else(|| random.hash()));
        }
        let tree = |domain, leaves: &[Vec<u8>]| {
            let mut tree = MerkleTree::new(domain);
            leaves.iter().for_each(|leaf| tree.append(leaf));
            tree
        };
        let rows: Vec<Vec<u8>> = case
            .table
            .chunks(case.row.max(1))
            .map(<[u8]>::to_vec)
            .collect();
        let state_leaf = state_leaf(case);
        let mut leaves: Vec<Vec<u8>> = (0..5).map(|_| random.hash().to_vec()).collect();
        leaves[STATE_PLACE as usize] = state_leaf.clone();
        Self {
            case,
            leaf: case.leaf(),
            graph: tree(Domain::Graph, &nodes),
            nodes,
            trace,
            step,
            index,
            samples: tree(Domain::Samples, &rows),
            state: tree(Domain::StateTree, &leaves),
            state_leaf,
            other_leaf: leaves[0].clone(),
            chunks: case
                .tensors
                .iter()
                .map(|tensor| ChunkTree::new(tensor.bytes()))
                .collect(),
        }
    }

    /// The graph anew, from other nodes.
    fn plant(&mut self) {
        self.graph = MerkleTree::new(Domain::Graph);
        self.nodes.iter().for_each(|node| self.graph.append(node));
    }

    fn open_node(&self, index: u64) -> Opened {
        Opened {
            data: self.nodes[index as usize].clone(),
            path: self.graph.inclusion_path(index, self.graph.size()).unwrap(),
        }
    }

    /// The honest statement on one block; the first claim is right, the second is not.
    fn statement(&self, element: u64, block: u64) -> Statement {
        let (case, leaf) = (self.case, &self.leaf);
        let reads = case.reads(leaf, element, block);
        let is_state = leaf.is_state();
        let nodes = self.graph.size();
        let states = case.states(leaf, element);
        let size = 8 * leaf.width();
        let after = match leaf.blocks() {
            1 => leaf.finish(&leaf.decode_state(&states).unwrap()).unwrap(),
            _ => states[block as usize * size..][..size].to_vec(),
        };
        let mut wrong = after.clone();
        wrong[0] ^= 1;
        let inputs = (0..).zip(&case.tensors).zip(&reads.chunks);
        let tree = |tree: &MerkleTree| Tree {
            root: tree.root(tree.size()).unwrap(),
            size: tree.size(),
        };
        Statement {
            graph: tree(&self.graph),
            trace: tree(&self.trace),
            position: self.step * nodes + self.index,
            base: Some(self.state.root(self.state.size()).unwrap()),
            samples: tree(&self.samples),
            windows: None,
            tokens: vec![],
            node: self.open_node(self.index),
            sources: match (is_state, self.step) {
                (false, _) => (0..self.index).map(|index| self.open_node(index)).collect(),
                (true, 0) => vec![],
                (true, _) => vec![self.open_node(self.index + 1)],
            },
            source_index: if is_state && self.step > 0 {
                self.index + 1
            } else {
                0
            },
            inputs: inputs
                .map(|((i, tensor), chunks)| Input {
                    digest: tensor.digest(),
                    path: match (is_state, self.step) {
                        (true, 0) => vec![],
                        (true, step) => self.trace_path((step - 1) * nodes + self.index + 1),
                        (false, step) => self.trace_path(step * nodes + i as u64),
                    },
                    chunks: chunks
                        .iter()
                        .map(|&index| Chunk {
                            index,
                            chunk: tensor_digest::chunk_bytes(tensor.bytes(), index)
                                .unwrap()
                                .to_vec(),
                            path: self.chunks[i].path(index).unwrap(),
                        })
                        .collect(),
                })
                .collect(),
            state_leaf: (is_state && self.step == 0).then(|| Member {
                leaf: self.state_leaf.clone(),
                index: STATE_PLACE,
                size: self.state.size(),
                path: self
                    .state
                    .inclusion_path(STATE_PLACE, self.state.size())
                    .unwrap(),
            }),
            rows: reads
                .rows
                .iter()
                .map(|&index| Row {
                    index,
                    row: case.table[index as usize * case.row..][..case.row].to_vec(),
                    path: self
                        .samples
                        .inclusion_path(index, self.samples.size())
                        .unwrap(),
                })
                .collect(),
            element,
            block,
            before: match block {
                0 => vec![],
                _ => states[(block - 1) as usize * size..][..size].to_vec(),
            },
            claims: [after, wrong],
        }
    }

    fn trace_path(&self, position: u64) -> Vec<Hash> {
        self.trace
            .inclusion_path(position, self.trace.size())
            .unwrap()
    }
}

/// The `next_state` that a state of this case comes from.
fn next_state(case: &Case) -> Node {
    let name = case
        .node
        .attrs
        .get("name")
        .cloned()
        .unwrap_or(Attr::Text("w".into()));
    Node {
        name: "after".into(),
        op: "next_state".into(),
        attrs: BTreeMap::from([("name".into(), name)]),
        inputs: vec![Ref { node: 0, output: 0 }],
        outputs: case.node.outputs.clone(),
    }
}

fn state_leaf(case: &Case) -> Vec<u8> {
    let attrs = &case.node.attrs;
    let (Some(Attr::Text(name)), Some(Attr::Text(dtype)), Some(Attr::Ints(shape))) =
        (attrs.get("name"), attrs.get("dtype"), attrs.get("shape"))
    else {
        return vec![];
    };
    let Some(&Attr::Int(exponent)) = attrs.get("exponent") else {
        return vec![];
    };
    let digest = case.digests()[0];
    let leaf = cbor::encode(&map([
        ("digest", Value::Bytes(digest.to_vec())),
        ("dtype", Value::Text(dtype.clone())),
        ("exponent", Value::Int(exponent)),
        ("name", Value::Text(name.clone())),
        (
            "shape",
            Value::Array(shape.iter().map(|&extent| Value::Int(extent)).collect()),
        ),
    ]))
    .unwrap();
    let fields = StateLeaf {
        name: name.clone(),
        dtype: dtype.clone(),
        shape: shape.clone(),
        exponent: exponent as i64,
    };
    let expected = commitment::state_leaf(&fields, &digest).unwrap();
    assert_eq!(merkle::leaf_hash(Domain::StateTree, &leaf), expected);
    leaf
}

fn rule(statement: &Statement) -> Result<Ruling, Refusal> {
    judge(&statement.encode().unwrap())
}

fn place(statement: &Statement) -> String {
    rule(statement).unwrap_err().place()
}

#[test]
fn honest_statements_are_judged() {
    let vectors = operator_cases().into_iter().map(|(case, ..)| case);
    for case in vectors.chain(long_cases()) {
        for step in [0, 3] {
            let world = World::new(&case, step);
            let (size, blocks) = (world.leaf.output().size() as u64, world.leaf.blocks());
            for (element, block) in [(0, 0), (size - 1, blocks - 1), (size / 2, blocks / 2)] {
                let statement = world.statement(element, block);
                assert_eq!(
                    Statement::decode(&statement.encode().unwrap()).unwrap(),
                    statement
                );
                let ruling = rule(&statement).unwrap_or_else(|e| panic!("{}: {e}", case.name));
                assert_eq!(ruling.right, [true, false], "{}", case.name);
                assert_eq!(ruling.after, statement.claims[0], "{}", case.name);
                assert_eq!(ruling.blocks, blocks);
                let mut silent = statement.clone();
                silent.claims = [vec![], silent.claims[0].clone()];
                assert_eq!(rule(&silent).unwrap().right, [false, true]);
            }
        }
    }
}

fn find(op: &str) -> Case {
    let case = operator_cases()
        .into_iter()
        .find(|(case, ..)| case.node.op == op);
    case.unwrap().0
}

/// The parts of a statement that are evidence: all but what the game says is agreed or asked.
fn evidence(statement: &Statement) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut member = statement.state_leaf.clone();
    if let Some(member) = &mut member {
        member.size = 0; // only membership counts
    }
    let parts = (
        statement.node.clone(),
        statement.sources.clone(),
        statement.source_index,
    );
    (
        parts,
        statement.inputs.clone(),
        member,
        statement.rows.clone(),
    )
}

/// What a statement is about, apart from the question put.
fn is_other_question(a: &Statement, b: &Statement) -> bool {
    a.element != b.element || a.block != b.block || a.before != b.before
}

fn assert_flips(statement: &Statement, flips: &[u8]) {
    let good = statement.encode().unwrap();
    let ruling = judge(&good).unwrap();
    for at in 0..good.len() {
        for flip in flips {
            let mut data = good.clone();
            data[at] ^= flip;
            let Ok(found) = judge(&data) else { continue };
            // It was accepted: then no byte of evidence has changed, and no other answer given.
            let changed = Statement::decode(&data).unwrap();
            assert_eq!(evidence(&changed), evidence(statement), "byte {at}");
            if is_other_question(&changed, statement) {
                continue;
            }
            assert_eq!(found.after, ruling.after, "byte {at}");
            for side in 0..2 {
                let right = changed.claims[side] == ruling.after;
                assert_eq!(found.right[side], right, "byte {at}");
            }
        }
    }
}

#[test]
fn no_byte_of_evidence_can_be_changed() {
    let long = long_cases();
    let strided = World::new(&long[0], 1);
    assert_flips(&strided.statement(3, 1), &[0x10]);
    for op in [
        "gather_samples",
        "state",
        "divide",
        "record",
        "tensor_digest",
        "max_pool_grad",
    ] {
        let case = find(op);
        for step in [0, 1] {
            assert_flips(&World::new(&case, step).statement(1, 0), &[1, 0x80, 0xff]);
        }
    }
}

#[test]
fn what_is_missing_or_left_over_is_refused() {
    let case = find("gather_samples");
    let world = World::new(&case, 1);
    let good = world.statement(0, 0);
    let change = |edit: &dyn Fn(&mut Statement)| {
        let mut statement = good.clone();
        edit(&mut statement);
        place(&statement)
    };
    assert_eq!(change(&|s| s.rows.clear()), "rows");
    assert_eq!(change(&|s| s.inputs[0].chunks.clear()), "inputs[0]");
    assert_eq!(change(&|s| s.rows.push(s.rows[0].clone())), "rows");
    let other = (0..world.samples.size())
        .find(|&index| index != good.rows[0].index)
        .unwrap();
    let more = Row {
        index: other,
        row: case.table[other as usize * case.row..][..case.row].to_vec(),
        path: world
            .samples
            .inclusion_path(other, world.samples.size())
            .unwrap(),
    };
    let unused = change(&|s| {
        s.rows.push(more.clone());
        s.rows.sort_by_key(|row| row.index);
    });
    assert!(unused.starts_with("rows["), "{unused}");
    assert_eq!(change(&|s| s.sources.clear()), "sources");
    assert_eq!(change(&|s| s.inputs.clear()), "inputs");
    assert_eq!(change(&|s| s.source_index = 1), "source_index");
    assert_eq!(change(&|s| s.element = 1 << 40), "element");
    assert_eq!(change(&|s| s.block = 1), "block");
    assert_eq!(change(&|s| s.before = vec![0; 8]), "before");
    assert_eq!(change(&|s| s.claims[1].push(0)), "claims");
    assert_eq!(change(&|s| s.position = u64::MAX), "position");
    assert_eq!(change(&|s| s.graph.size = 0), "graph");
    assert_eq!(change(&|s| s.node = world.open_node(0)), "node");
    assert_eq!(change(&|s| s.sources[0] = world.open_node(2)), "sources[0]");

    let long = long_cases();
    let world = World::new(&long[0], 0);
    let mut statement = world.statement(0, 1);
    statement.inputs[1].chunks.swap(0, 1);
    assert_eq!(place(&statement), "inputs[1].chunks");
    let mut statement = world.statement(0, 1);
    let (tree, tensor) = (&world.chunks[1], &world.case.tensors[1]);
    let last = tree.chunks() - 1;
    statement.inputs[1].chunks.push(Chunk {
        index: last,
        chunk: tensor_digest::chunk_bytes(tensor.bytes(), last)
            .unwrap()
            .to_vec(),
        path: tree.path(last).unwrap(),
    });
    let unused = place(&statement);
    assert!(unused.starts_with("inputs[1].chunks"), "{unused}");
}

#[test]
fn a_state_is_that_of_its_name() {
    let case = find("state");
    let first = World::new(&case, 0).statement(1, 0);
    let change = |good: &Statement, edit: &dyn Fn(&mut Statement)| {
        let mut statement = good.clone();
        edit(&mut statement);
        place(&statement)
    };
    assert_eq!(change(&first, &|s| s.base = None), "base");
    assert_eq!(change(&first, &|s| s.base = Some([1; 32])), "state_leaf");
    assert_eq!(change(&first, &|s| s.state_leaf = None), "state_leaf");
    assert_eq!(
        change(&first, &|s| s.inputs[0].path.push([0; 32])),
        "inputs[0]"
    );
    assert_eq!(
        change(&first, &|s| s.sources.push(s.node.clone())),
        "sources"
    );
    let later = World::new(&case, 2).statement(1, 0);
    assert_eq!(change(&later, &|s| s.sources.clear()), "sources");
    assert_eq!(change(&later, &|s| s.source_index = 0), "sources[0]");
    assert_eq!(
        change(&later, &|s| s.state_leaf.clone_from(&first.state_leaf)),
        "state_leaf"
    );
    // Another leaf of the same state, and one that says another digest.
    let others = World::new(&case, 0);
    let mut statement = first.clone();
    let member = statement.state_leaf.as_mut().unwrap();
    (member.leaf, member.index) = (others.other_leaf.clone(), 0);
    member.path = others.state.inclusion_path(0, others.state.size()).unwrap();
    assert_eq!(
        rule(&statement).unwrap_err().reason(),
        "is not that of the node's state"
    );
    // The next_state of another name, and one of another type.
    for name in ["other", "w"] {
        let mut world = World::new(&case, 2);
        let mut after = next_state(&case);
        after.attrs.insert("name".into(), Attr::Text(name.into()));
        if name == "w" {
            after.outputs[0].shape.push(1);
        }
        world.nodes[world.index as usize + 1] = encode_node(&after);
        world.plant();
        let refusal = rule(&world.statement(1, 0)).unwrap_err();
        assert_eq!(refusal.place(), "sources[0]");
    }
    // The node itself is in the graph, but is no next_state.
    let world = World::new(&case, 2);
    let own = change(&later, &|s| {
        s.source_index = world.index;
        s.sources = vec![world.open_node(world.index)];
    });
    assert_eq!(own, "sources[0]");
}

#[test]
fn no_bytes_crash_the_referee() {
    let mut random = Random(3);
    for length in 0..400 {
        let data: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        assert!(judge(&data).is_err());
    }
    let cases: Vec<Case> = operator_cases()
        .into_iter()
        .map(|(case, ..)| case)
        .collect();
    for case in &cases {
        let good = World::new(case, random.next() % 3)
            .statement(0, 0)
            .encode()
            .unwrap();
        for _ in 0..60 {
            let mut data = good.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(data.len());
                match random.below(4) {
                    0 => data.truncate(at + 1),
                    1 => data[at] = random.next() as u8,
                    2 => data.insert(at, random.next() as u8),
                    _ => {
                        let from = random.below(data.len());
                        let piece = data[from..].iter().copied().take(9).collect::<Vec<u8>>();
                        data.splice(at..at, piece);
                    }
                }
            }
            let _ = judge(&data);
        }
    }
    assert_eq!(judge(&vec![0; (16 << 20) + 1]), Err(Refusal::TooLong));
}

/// Any value for any element, and rows that are not there.
struct Noise(Random);

impl Reader for Noise {
    fn element(&mut self, _: usize, _: u64) -> Result<i64, Stop> {
        Ok(self.0.extreme())
    }

    fn digest(&mut self, _: usize) -> Result<Hash, Stop> {
        Ok(self.0.hash())
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        if index % 2 == 0 {
            Ok(&[1, 2, 3])
        } else {
            Err(Stop::Sample(0))
        }
    }

    fn tokens(&self) -> Option<Tokens> {
        None
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        Err(Stop::Token(at))
    }
}

/// A reader that keeps to the dtypes, as every real one does.
struct Typed(Noise, Vec<Dtype>);

impl Reader for Typed {
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop> {
        let value = self.0.element(input, index)?;
        Ok(match self.1[input] {
            Dtype::U8 => (value as u8).into(),
            Dtype::I8 => (value as i8).into(),
            Dtype::I16 => (value as i16).into(),
            Dtype::I32 => (value as i32).into(),
            Dtype::I64 => value,
        })
    }

    fn digest(&mut self, input: usize) -> Result<Hash, Stop> {
        self.0.digest(input)
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        self.0.sample(index)
    }

    fn tokens(&self) -> Option<Tokens> {
        self.0.tokens()
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        self.0.token(at)
    }
}

const EXTENTS: [usize; 9] = [0, 1, 2, 3, 31, 1 << 16, 1 << 32, 1 << 47, 1 << 48];

/// Changes an extent of some type and some attribute.
fn distort(random: &mut Random, node: &mut Node, sources: &mut [Node]) {
    let extent = EXTENTS[random.below(EXTENTS.len())];
    let nodes = sources.iter_mut().chain([&mut *node]);
    let mut types: Vec<&mut TensorType> = nodes.flat_map(|node| node.outputs.iter_mut()).collect();
    let chosen = random.below(types.len());
    if let Some(axis) = types[chosen].shape.get_mut(random.below(3)) {
        *axis = extent;
    }
    let count = node.attrs.len().max(1);
    match node.attrs.values_mut().nth(random.below(count)) {
        Some(Attr::Int(value)) => *value = random.extreme().into(),
        Some(Attr::Ints(items)) if !items.is_empty() => {
            let at = random.below(items.len());
            items[at] = EXTENTS[random.below(EXTENTS.len())] as i128;
        }
        _ => {}
    }
}

#[test]
fn no_node_in_an_agreed_graph_crashes_the_referee() {
    let mut random = Random(13);
    let cases: Vec<Case> = operator_cases()
        .into_iter()
        .map(|(case, ..)| case)
        .collect();
    let (mut judged, mut refused) = (0, 0);
    for case in &cases {
        let mut world = World::new(case, random.next() % 3);
        let good = world.statement(0, 0);
        let honest = world.nodes.clone();
        for _ in 0..40 {
            let (mut node, mut sources) = (case.node.clone(), case.sources.clone());
            distort(&mut random, &mut node, &mut sources);
            world.nodes.clone_from(&honest);
            world.nodes[world.index as usize] = encode_node(&node);
            for (to, source) in world.nodes.iter_mut().zip(&sources) {
                *to = encode_node(source);
            }
            world.plant();
            let mut statement = good.clone();
            statement.graph.root = world.graph.root(world.graph.size()).unwrap();
            statement.node = world.open_node(world.index);
            let count = statement.sources.len() as u64;
            let first = if world.leaf.is_state() {
                world.index + 1
            } else {
                0
            };
            statement.sources = (first..first + count).map(|i| world.open_node(i)).collect();
            match rule(&statement) {
                Ok(_) => judged += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(judged > 100 && refused > 100, "{judged} {refused}");
}

#[test]
fn the_largest_statements_are_refused() {
    let case = find("relu");
    let mut statement = World::new(&case, 0).statement(0, 0);
    let chunk = Chunk {
        index: 0,
        chunk: vec![],
        path: vec![],
    };
    let input = Input {
        digest: [0; 32],
        path: vec![],
        chunks: vec![chunk; 32],
    };
    statement.inputs = vec![input; 9_000];
    let data = statement.encode().unwrap();
    assert!(data.len() > 6 << 20, "{}", data.len());
    assert_eq!(judge(&data).unwrap_err().place(), "inputs");
    statement.inputs = vec![statement.inputs[0].clone(); 1];
    statement.inputs[0].chunks = vec![statement.inputs[0].chunks[0].clone(); 33];
    let place = judge(&statement.encode().unwrap()).unwrap_err().place();
    assert_eq!(place, "statement.inputs[0].chunks");
}

#[test]
fn no_node_and_no_values_crash_a_rule() {
    let mut random = Random(11);
    let mut run = 0;
    let cases: Vec<Case> = operator_cases()
        .into_iter()
        .map(|(case, ..)| case)
        .chain(long_cases())
        .collect();
    for round in 0..400 {
        for case in &cases {
            let (mut node, mut sources) = (case.node.clone(), case.sources.clone());
            for _ in 0..round % 3 {
                distort(&mut random, &mut node, &mut sources);
            }
            let Ok(forms) = input_forms(&node, &sources) else {
                continue;
            };
            let Ok(leaf) = Leaf::new(&node, &forms) else {
                continue;
            };
            run += 1;
            assert!(leaf.block_length() >= 1 && leaf.block_length() <= 1 << 16);
            let dtypes = leaf.inputs().iter().map(|form| form.dtype).collect();
            let mut reader = Typed(Noise(Random(random.next())), dtypes);
            let size = leaf.output().size() as u64;
            let state = [random.extreme().into(), random.extreme().into()];
            for element in [0, size - 1, random.next() % size] {
                for block in [0, leaf.blocks() - 1, random.next() % leaf.blocks()] {
                    if let Ok(state) = leaf.run_block(state, element, block, &mut reader) {
                        assert!(leaf.encode_state(&state).is_some());
                        let _ = leaf.finish(&state);
                    }
                }
            }
        }
    }
    assert!(run > 1000, "{run} nodes were legal");
}

#[test]
fn hostile_extents_are_refused() {
    let huge = |shape: &[usize]| TensorType {
        dtype: Dtype::I16,
        shape: shape.to_vec(),
        exponent: 0,
        lo: 0,
        hi: 0,
    };
    let cases = [
        (
            "transpose",
            vec![("perm", ints(&[1, 0, 2]))],
            vec![0, 1 << 48, 1 << 48],
        ),
        ("relu", vec![], vec![1 << 48, 1 << 48]),
        ("sum", vec![], vec![1 << 33]),
        ("sum", vec![], vec![1 << 20, 0]),
        (
            "max_pool",
            window(
                [1 << 32, 1 << 32],
                [1, 1],
                [0, 0, (1 << 32) - 1, (1 << 32) - 1],
            ),
            vec![1, 1, 1, 1],
        ),
        (
            "max_pool",
            window([1, 1], [1, 1], [0, 0, 0, 0]),
            vec![0, 1 << 48, 1 << 48, 1 << 48],
        ),
    ];
    for (op, attrs, shape) in cases {
        let mut case = find("relu");
        case.node.op = op.into();
        case.node.attrs = attrs
            .into_iter()
            .map(|(name, attr)| (name.into(), attr))
            .collect();
        case.node.outputs = vec![huge(&shape)];
        case.sources[0].outputs = vec![huge(&shape)];
        let world_node = encode_node(&case.node);
        assert!(Node::decode(&world_node).is_ok());
        let leaf = input_forms(&case.node, &case.sources).and_then(|f| Leaf::new(&case.node, &f));
        assert!(leaf.is_err(), "{op} {shape:?}");
    }
}

/// What the largest statements weigh and take; `--nocapture` prints it.
#[test]
fn a_matmul_of_4096_terms_is_opened_in_80_kilobytes() {
    let mut random = Random(5);
    let flags = |a: i64, b: i64| {
        [
            ("transpose_a", Attr::Int(a.into())),
            ("transpose_b", Attr::Int(b.into())),
        ]
    };
    for (a, b, name) in [
        (0, 1, "forward"),
        (0, 0, "input gradient"),
        (1, 0, "weight gradient"),
    ] {
        let (left, right) = (
            if a == 1 { [4096, 512] } else { [512, 4096] },
            if b == 1 { [512, 4096] } else { [4096, 512] },
        );
        let tensors = vec![
            Tensor::random(&mut random, Dtype::I16, &left, 15),
            Tensor::random(&mut random, Dtype::I16, &right, 15),
        ];
        let case = Case::new("matmul", &flags(a, b), tensors, Dtype::I64, &[512, 512]);
        let world = World::new(&case, 2);
        let statement = world.statement(512 * 77 + 400, world.leaf.blocks() / 2);
        let data = statement.encode().unwrap();
        let start = std::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(judge(&data).unwrap().right, [true, false]);
        }
        let chunks: usize = statement
            .inputs
            .iter()
            .map(|input| input.chunks.len())
            .sum();
        println!(
            "{name}: {} blocks of {} terms, {chunks} chunks, {} bytes, {:?}",
            world.leaf.blocks(),
            world.leaf.block_length(),
            data.len(),
            start.elapsed() / 100
        );
        assert!(data.len() < 80_000, "{name}: {} bytes", data.len());
    }
}

// --- frontiers

#[test]
fn frontiers_fold_to_what_they_are_of() {
    let lengths = [
        0,
        1,
        1023,
        1024,
        1025,
        2048,
        2049,
        3072,
        5000,
        7 * 1024,
        33_000,
    ];
    for length in lengths {
        let data: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        let tree = ChunkTree::new(&data);
        let chunks = tree.chunks();
        assert_eq!(tree.digest(), tensor_digest::digest(&data));
        assert_eq!(chunks, tensor_digest::chunk_count(length));
        for index in 0..chunks {
            assert_eq!(tree.path(index), tensor_digest::chunk_path(&data, index));
        }
        assert!(tree.path(chunks).is_err());
        for depth in 0..8 {
            let items = tree.frontier(0, chunks, depth).unwrap();
            let mut items: Vec<&[u8]> = items.iter().map(|item| &item[..]).collect();
            if chunks == 1 {
                items = vec![&data];
            }
            let fold =
                |items: &[&[u8]]| tensor_digest::fold_chunk_frontier(0, chunks, depth, items, true);
            if depth > 0 || chunks == 1 {
                assert_eq!(fold(&items), Ok(tree.digest()), "{length} {depth}");
            }
            assert!(fold(&items[1..]).is_err());
            assert!(fold(&[&items[..], &[&[0; 32]]].concat()).is_err());
        }
        // The right half has the value that the frontier of the whole gives it.
        if chunks > 2 {
            let middle = merkle::split(chunks);
            let halves = tree.frontier(0, chunks, 1).unwrap();
            let items = tree.frontier(middle, chunks, 1).unwrap();
            let chunk = tensor_digest::chunk_bytes(&data, middle).unwrap();
            let items: Vec<&[u8]> = match chunks - middle {
                1 => vec![chunk],
                _ => items.iter().map(|item| &item[..]).collect(),
            };
            let value = tensor_digest::fold_chunk_frontier(middle, chunks, 1, &items, false);
            assert_eq!(value, Ok(halves[1]));
        }
        assert!(tree.frontier(0, 0, 1).is_err());
        assert!(tree.frontier(0, chunks + 1, 1).is_err());
        assert!(tree.frontier(1, u64::MAX, 1).is_err());
    }
    let empty: &[&[u8]] = &[&[]];
    assert!(tensor_digest::fold_chunk_frontier(0, 1, 0, empty, false).is_err());
    assert!(tensor_digest::fold_chunk_frontier(u64::MAX - 1, u64::MAX, 0, &[b"x"], false).is_err());
    assert!(tensor_digest::fold_chunk_frontier(0, u64::MAX, u32::MAX, empty, true).is_err());
}

#[test]
fn frontiers_of_lists_fold_to_their_roots() {
    let mut tree = MerkleTree::new(Domain::Terms);
    for leaf in 0..37u8 {
        tree.append(&[leaf]);
    }
    for size in 1..=37 {
        for depth in 0..7 {
            let mut prefix = MerkleTree::new(Domain::Terms);
            (0..size as u8).for_each(|leaf| prefix.append(&[leaf]));
            let items = prefix.frontier(0, size, depth).unwrap();
            let root = tree.root(size).unwrap();
            let fold = |items: &[Hash]| merkle::fold_frontier(Domain::Terms, 0, size, depth, items);
            assert_eq!(fold(&items), Ok(root));
            assert!(fold(&items[1..]).is_err());
            assert!(fold(&[&items[..], &[root]].concat()).is_err());
        }
    }
    assert_eq!(tree.frontier(32, 37, 1).unwrap().len(), 2);
    for (start, end) in [(1, 3), (3, 3), (5, 4), (30, 38), (0, u64::MAX)] {
        assert!(tree.frontier(start, end, 1).is_err(), "{start} {end}");
    }
    assert!(merkle::fold_frontier(Domain::Terms, 0, u64::MAX, u32::MAX, &[[0; 32]; 5]).is_err());
    assert!(merkle::fold_frontier(Domain::Terms, 5, 5, 0, &[[0; 32]]).is_err());
}
