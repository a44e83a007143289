//! The ruling on a statement: every opening is checked, then one block is recomputed.

use super::fold::{Leaf, Reader, Stop, Tokens, element_of, input_forms};
use super::statement::{Chunk, Input, Opened, Refusal, Row, Statement, encode_map};
use super::whole::chunk_of;
use crate::cbor::{self, EncodeError, Value};
use crate::domains::{Domain, Hash};
use crate::graph::{Attr, GraphDecodeError, Node};
use crate::merkle::{leaf_hash, verify_inclusion};
use crate::number::Dtype;
use crate::ops::commitment::{self, StateLeaf};
use crate::ops::{Form, OpError};
use crate::tensor_digest::verify_chunk;

/// What the law says of the disputed block, and of both claims about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The element if it has one block, else the state after the block; empty if the law gives none.
    pub after: Vec<u8>,
    /// Which claims are that; none is where `after` is empty.
    pub right: [bool; 2],
    /// Blocks of the element's fold.
    pub blocks: u64,
    /// What was recomputed, for people.
    pub what: String,
}

impl Ruling {
    /// The canonical bytes.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let right = self.right.map(|right| Value::Int(right.into()));
        cbor::encode(&encode_map([
            ("after", Value::Bytes(self.after.clone())),
            ("blocks", Value::Int(self.blocks.into())),
            ("right", Value::Array(right.into())),
            ("what", Value::Text(self.what.clone())),
        ]))
    }
}

/// Judges a statement: total, in time and memory linear in its bytes.
///
/// Every opening in it is checked against its root or digest, and nothing may be left over that the
/// block does not read. A [`Refusal`] is no ruling: it lies with whoever wrote the statement.
pub fn judge(statement: &[u8]) -> Result<Ruling, Refusal> {
    let statement = Statement::decode(statement)?;
    let site = Site::new(&statement)?;
    let leaf = &site.leaf;
    let (element, block, blocks) = (statement.element, statement.block, leaf.blocks());
    require(
        element < leaf.output().size() as u64,
        "element",
        "there is no such element",
    )?;
    require(block < blocks, "block", "there is no such block")?;
    let before = match block {
        0 => statement.before.is_empty().then(|| leaf.init()),
        _ => leaf.decode_state(&statement.before),
    };
    let before = before.ok_or_else(|| contradiction("before", "is no state of the fold"))?;
    let claim_length = match blocks {
        1 => leaf.output().dtype.size(),
        _ => 8 * leaf.width(),
    };
    let fits = |claim: &Vec<u8>| claim.is_empty() || claim.len() == claim_length;
    require(
        statement.claims.iter().all(fits),
        "claims",
        "a claim has another length",
    )?;

    let mut reader = Openings::new(&statement, leaf)?;
    let after = match leaf.run_block(before, element, block, &mut reader) {
        Ok(state) if blocks == 1 => leaf.finish(&state),
        Ok(state) => leaf.encode_state(&state),
        Err(Stop::NoValue) => None,
        Err(stop) => return Err(reader.missing(&stop)),
    };
    reader.check_all_read()?;
    let after = after.unwrap_or_default();
    let right = |claim: &Vec<u8>| !after.is_empty() && *claim == after;
    Ok(Ruling {
        right: [right(&statement.claims[0]), right(&statement.claims[1])],
        after,
        blocks,
        what: format!(
            "{} element {element} block {block} of {blocks} step {}",
            site.place, site.step
        ),
    })
}

fn contradiction(place: &str, reason: &str) -> Refusal {
    Refusal::Contradiction {
        place: place.to_owned(),
        reason: reason.to_owned(),
    }
}

fn require(condition: bool, place: &str, reason: &str) -> Result<(), Refusal> {
    if condition {
        Ok(())
    } else {
        Err(contradiction(place, reason))
    }
}

/// The disputed node with its rule, its inputs' digests shown to be the agreed ones.
struct Site {
    leaf: Leaf,
    place: String,
    step: u64,
}

impl Site {
    fn new(statement: &Statement) -> Result<Self, Refusal> {
        let (nodes, position) = (statement.graph.size, statement.position);
        require(nodes > 0, "graph", "has no nodes")?;
        require(
            position < statement.trace.size,
            "position",
            "is not in the trace",
        )?;
        let (step, index) = (position / nodes, position % nodes);
        let node = open_node(statement, &statement.node, index, "node")?;
        let state = match node.op.as_str() {
            "state" => Some(state_of(&node)?),
            _ => None,
        };
        let leaf = match &state {
            Some(state) if step == 0 => {
                require(
                    statement.sources.is_empty(),
                    "sources",
                    "an old state has none",
                )?;
                check_old_state(statement, state)?;
                rule(&node, &[])?
            }
            Some(state) => {
                let leaf = rule(&node, &[])?;
                check_last_state(statement, state, &leaf, (step - 1) * nodes)?;
                leaf
            }
            None => {
                let sources = open_sources(statement, &node, index)?;
                let leaf = rule(&node, &sources)?;
                check_inputs(statement, &node, step * nodes)?;
                leaf
            }
        };
        let needs_leaf = state.is_some() && step == 0;
        require(
            needs_leaf || statement.state_leaf.is_none(),
            "state_leaf",
            "only a state in the first step has one",
        )?;
        let needs_index = state.is_some() && step > 0;
        require(
            needs_index || statement.source_index == 0,
            "source_index",
            "only a state after the first step has one",
        )?;
        Ok(Self {
            leaf,
            place: format!("node {} ({})", node.name, node.op),
            step,
        })
    }
}

fn rule(node: &Node, sources: &[Node]) -> Result<Leaf, Refusal> {
    let leaf = input_forms(node, sources).and_then(|forms| Leaf::new(node, &forms));
    leaf.map_err(|OpError(reason)| contradiction("node", &reason))
}

fn decode_node(data: &[u8], place: &str) -> Result<Node, Refusal> {
    Node::decode(data).map_err(|error| {
        let reason = match error {
            GraphDecodeError::Encoding(error) => error.to_string(),
            GraphDecodeError::Field { reason, .. } => reason,
        };
        contradiction(place, &reason)
    })
}

/// Node `index` of the graph.
fn open_node(
    statement: &Statement,
    opened: &Opened,
    index: u64,
    place: &str,
) -> Result<Node, Refusal> {
    let graph = &statement.graph;
    let (data, path) = (&opened.data, &opened.path);
    if !verify_inclusion(Domain::Graph, &graph.root, data, index, graph.size, path) {
        return Err(Refusal::Opening(place.to_owned()));
    }
    decode_node(data, place)
}

fn open_sources(statement: &Statement, node: &Node, index: u64) -> Result<Vec<Node>, Refusal> {
    require(
        statement.sources.len() == node.inputs.len(),
        "sources",
        "are not one for each input",
    )?;
    let pairs = node.inputs.iter().zip(&statement.sources).enumerate();
    pairs
        .map(|(i, (input, source))| {
            let earlier = (input.node as u64) < index;
            require(earlier, "node", "has an input that does not come before it")?;
            open_node(
                statement,
                source,
                input.node as u64,
                &format!("sources[{i}]"),
            )
        })
        .collect()
}

/// Is `input` what the trace has at `position`?
fn check_input(
    statement: &Statement,
    input: &Input,
    position: u64,
    place: usize,
) -> Result<(), Refusal> {
    let (trace, digest) = (&statement.trace, &input.digest);
    if position < statement.position
        && verify_inclusion(
            Domain::Trace,
            &trace.root,
            digest,
            position,
            trace.size,
            &input.path,
        )
    {
        return Ok(());
    }
    Err(Refusal::Opening(format!("inputs[{place}]")))
}

fn check_inputs(statement: &Statement, node: &Node, first: u64) -> Result<(), Refusal> {
    require(
        statement.inputs.len() == node.inputs.len(),
        "inputs",
        "are not one for each of the node's",
    )?;
    let pairs = node.inputs.iter().zip(&statement.inputs).enumerate();
    for (i, (source, input)) in pairs {
        check_input(statement, input, first + source.node as u64, i)?;
    }
    Ok(())
}

/// What the leaf of a state says of it, from the `state` node's attributes.
fn state_of(node: &Node) -> Result<StateLeaf, Refusal> {
    match ["name", "dtype", "shape", "exponent"].map(|name| node.attrs.get(name)) {
        [
            Some(Attr::Text(name)),
            Some(Attr::Text(dtype)),
            Some(Attr::Ints(shape)),
            Some(&Attr::Int(exponent)),
        ] if (-512..=512).contains(&exponent) => Ok(StateLeaf {
            name: name.clone(),
            dtype: dtype.clone(),
            shape: shape.clone(),
            exponent: exponent as i64,
        }),
        _ => Err(contradiction("node", "is no state")),
    }
}

fn only_input(statement: &Statement) -> Result<&Input, Refusal> {
    match statement.inputs.as_slice() {
        [input] => Ok(input),
        _ => Err(contradiction("inputs", "a state has one: its value")),
    }
}

/// A state of the first step is the one under the agreed root before it. The size of that tree is
/// not pinned: membership is all that counts, names in a state are unique.
fn check_old_state(statement: &Statement, state: &StateLeaf) -> Result<(), Refusal> {
    let input = only_input(statement)?;
    require(
        input.path.is_empty(),
        "inputs[0]",
        "a state older than the trace has no path in it",
    )?;
    let base = statement.base;
    let base = base.ok_or_else(|| contradiction("base", "a state in the first step needs it"))?;
    let member = statement.state_leaf.as_ref();
    let member = member.ok_or_else(|| contradiction("state_leaf", "is missing"))?;
    let expected = commitment::state_leaf(state, &input.digest)
        .map_err(|error| contradiction("node", &error.to_string()))?;
    require(
        leaf_hash(Domain::StateTree, &member.leaf) == expected,
        "state_leaf",
        "is not that of the node's state",
    )?;
    let (index, size) = (member.index, member.size);
    let data = &member.leaf;
    if !verify_inclusion(Domain::StateTree, &base, data, index, size, &member.path) {
        return Err(Refusal::Opening("state_leaf".to_owned()));
    }
    Ok(())
}

/// A state of a later step is what the `next_state` of its name put out in the step before.
fn check_last_state(
    statement: &Statement,
    state: &StateLeaf,
    leaf: &Leaf,
    first: u64,
) -> Result<(), Refusal> {
    let [source] = statement.sources.as_slice() else {
        return Err(contradiction("sources", "a state has one: its next_state"));
    };
    let index = statement.source_index;
    let source = open_node(statement, source, index, "sources[0]")?;
    let named = source.attrs.get("name");
    let follows = source.op == "next_state"
        && matches!(named, Some(Attr::Text(name)) if *name == state.name)
        && matches!(source.outputs.as_slice(), [output]
            if output.dtype == leaf.output().dtype && output.shape == leaf.output().shape);
    require(
        follows,
        "sources[0]",
        "is not the next_state of the node's state",
    )?;
    check_input(statement, only_input(statement)?, first + index, 0)
}

/// Chunks of one input, and which of them have been read.
struct OpenInput<'a> {
    input: &'a Input,
    dtype: Dtype,
    read: Vec<bool>,
    /// Where the last element was found: most reads go on from there.
    last: usize,
}

/// Rows by index, and which of them have been read.
struct OpenRow<'a> {
    row: &'a Row,
    read: bool,
}

/// Chunks of the file of tokens by index, and which of them have been read.
struct OpenTokens<'a> {
    chunk: &'a Chunk,
    read: bool,
}

/// A reader of what a statement opens.
struct Openings<'a> {
    inputs: Vec<OpenInput<'a>>,
    rows: Vec<OpenRow<'a>>,
    samples: u64,
    windows: Option<Tokens>,
    tokens: Vec<OpenTokens<'a>>,
}

impl<'a> Openings<'a> {
    /// Checks every chunk against its input's digest, and every row, or chunk of tokens, against
    /// the samples' root.
    fn new(statement: &'a Statement, leaf: &Leaf) -> Result<Self, Refusal> {
        let forms = leaf.inputs();
        require(
            statement.inputs.len() == forms.len(),
            "inputs",
            "are too many or too few",
        )?;
        let pairs = statement.inputs.iter().zip(forms).enumerate();
        let inputs = pairs
            .map(|(i, (input, form))| {
                check_chunks(input, form, i)?;
                Ok(OpenInput {
                    input,
                    dtype: form.dtype,
                    read: vec![false; input.chunks.len()],
                    last: 0,
                })
            })
            .collect::<Result<_, Refusal>>()?;
        let rows = &statement.rows;
        require(
            rows.is_sorted_by(|a, b| a.index < b.index),
            "rows",
            "are not ascending",
        )?;
        let samples = &statement.samples;
        if let Some(windows) = &statement.windows {
            require(
                windows.samples() == samples.size,
                "windows",
                "make other samples",
            )?;
            require(rows.is_empty(), "rows", "samples are windows of tokens")?;
            check_tokens(statement, windows)?;
        }
        for (i, row) in rows.iter().enumerate() {
            let (data, index) = (&row.row, row.index);
            let (domain, root) = (Domain::Samples, &samples.root);
            if !verify_inclusion(domain, root, data, index, samples.size, &row.path) {
                return Err(Refusal::Opening(format!("rows[{i}]")));
            }
        }
        let rows = rows.iter().map(|row| OpenRow { row, read: false });
        Ok(Self {
            inputs,
            rows: rows.collect(),
            samples: samples.size,
            windows: statement.windows,
            tokens: statement
                .tokens
                .iter()
                .map(|chunk| OpenTokens { chunk, read: false })
                .collect(),
        })
    }

    fn check_all_read(&self) -> Result<(), Refusal> {
        for (i, input) in self.inputs.iter().enumerate() {
            if let Some(j) = input.read.iter().position(|read| !read) {
                return Err(Refusal::Unused(format!("inputs[{i}].chunks[{j}]")));
            }
        }
        if let Some(i) = self.rows.iter().position(|row| !row.read) {
            return Err(Refusal::Unused(format!("rows[{i}]")));
        }
        match self.tokens.iter().position(|open| !open.read) {
            Some(i) => Err(Refusal::Unused(format!("tokens[{i}]"))),
            None => Ok(()),
        }
    }

    /// What was read and is not there.
    fn missing(&self, stop: &Stop) -> Refusal {
        let (place, what) = match stop {
            Stop::Element { input, index } => {
                let open = self.inputs.get(*input);
                let chunk = open.map_or(0, |open| chunk_of(open.dtype, *index));
                (format!("inputs[{input}]"), format!("chunk {chunk}"))
            }
            Stop::Digest(input) => (format!("inputs[{input}]"), "a digest".to_owned()),
            Stop::Sample(index) => ("rows".to_owned(), format!("row {index}")),
            Stop::Token(at) => {
                let chunk = self.windows.map_or(0, |windows| windows.chunk_of(*at));
                ("tokens".to_owned(), format!("chunk {chunk}"))
            }
            Stop::NoValue => ("node".to_owned(), "a value".to_owned()),
        };
        Refusal::Missing { place, what }
    }
}

fn check_chunks(input: &Input, form: &Form, i: usize) -> Result<(), Refusal> {
    require(
        input.chunks.is_sorted_by(|a, b| a.index < b.index),
        &format!("inputs[{i}].chunks"),
        "are not ascending",
    )?;
    let length = form.byte_len() as u64;
    for (j, opened) in input.chunks.iter().enumerate() {
        let Chunk { index, chunk, path } = opened;
        if !verify_chunk(&input.digest, length, *index, chunk, path) {
            return Err(Refusal::Opening(format!("inputs[{i}].chunks[{j}]")));
        }
    }
    Ok(())
}

/// The root is the plain BLAKE3 of the file, whose length the windows say.
fn check_tokens(statement: &Statement, windows: &Tokens) -> Result<(), Refusal> {
    let tokens = &statement.tokens;
    require(
        tokens.is_sorted_by(|a, b| a.index < b.index),
        "tokens",
        "are not ascending",
    )?;
    let (root, length) = (&statement.samples.root, windows.byte_len());
    for (i, opened) in tokens.iter().enumerate() {
        let Chunk { index, chunk, path } = opened;
        if !verify_chunk(root, length, *index, chunk, path) {
            return Err(Refusal::Opening(format!("tokens[{i}]")));
        }
    }
    Ok(())
}

impl OpenInput<'_> {
    fn element(&mut self, index: u64) -> Option<i64> {
        let wanted = chunk_of(self.dtype, index);
        let chunks = &self.input.chunks;
        if chunks
            .get(self.last)
            .is_none_or(|chunk| chunk.index != wanted)
        {
            self.last = chunks
                .binary_search_by_key(&wanted, |chunk| chunk.index)
                .ok()?;
        }
        *self.read.get_mut(self.last)? = true;
        let size = self.dtype.size();
        let start = (index % (blake3::CHUNK_LEN / size) as u64) as usize * size;
        let bytes = chunks.get(self.last)?.chunk.get(start..)?.get(..size)?;
        element_of(self.dtype, bytes)
    }
}

impl Reader for Openings<'_> {
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop> {
        let open = self.inputs.get_mut(input);
        open.and_then(|open| open.element(index))
            .ok_or(Stop::Element { input, index })
    }

    fn digest(&mut self, input: usize) -> Result<Hash, Stop> {
        let open = self.inputs.get(input);
        open.map(|open| open.input.digest)
            .ok_or(Stop::Digest(input))
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        let Some(index) = u64::try_from(index).ok().filter(|&i| i < self.samples) else {
            return Ok(&[]);
        };
        let found = self.rows.iter_mut().find(|open| open.row.index == index);
        let open = found.ok_or(Stop::Sample(index))?;
        open.read = true;
        Ok(&open.row.row)
    }

    fn tokens(&self) -> Option<Tokens> {
        self.windows
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        let missing = Stop::Token(at);
        let Some(Tokens { windows, .. }) = self.windows else {
            return Err(missing);
        };
        let per_chunk = (blake3::CHUNK_LEN / windows.width) as u64;
        let wanted = at / per_chunk;
        let found = self
            .tokens
            .iter_mut()
            .find(|open| open.chunk.index == wanted);
        let Some(open) = found else {
            return Err(missing);
        };
        open.read = true;
        let element = windows.element(&open.chunk.chunk, (at % per_chunk) as usize);
        element.map(i64::from).ok_or(missing)
    }
}
