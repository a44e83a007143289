//! What a referee judges: everything that bears on one block of one element, opened.
//!
//! A statement is canonical CBOR with exactly one encoding; nothing in it is believed here, only its
//! form is checked. Its fields are those of the maps, by the same names.

use super::fold::Tokens;
use crate::cbor::{self, EncodeError, Value};
use crate::domains::Hash;
use crate::graph::{Fields, GraphDecodeError};
use crate::ops::Windows;

/// Bytes of a statement.
pub const MAX_STATEMENT: usize = 16 << 20;
/// Hashes of a path: no tree has 2^64 leaves.
const MAX_PATH: usize = 64;
/// Inputs of a node.
const MAX_INPUTS: usize = 1 << 16;
/// Chunks of one input, and sample rows: no block reads more of one.
const MAX_OPENED: usize = 32;
const MAX_COUNT: i128 = u64::MAX as i128;
/// Tokens of a file.
const MAX_TOKENS: i128 = 1 << 44;
/// Tokens of a window: elements of a tensor.
const MAX_CONTEXT: i128 = 1 << 32;
/// Types of tokens, with their bytes.
const TOKEN_WIDTHS: [(&str, usize); 3] = [("u16", 2), ("u32", 4), ("u64", 8)];

/// Why there is no ruling; whoever wrote the statement is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes are no statement.
    #[error(transparent)]
    Malformed(#[from] GraphDecodeError),
    /// The statement is longer than [`MAX_STATEMENT`].
    #[error("statement: is longer than 16 MiB")]
    TooLong,
    /// A part contradicts another.
    #[error("{place}: {reason}")]
    Contradiction {
        /// Which part: "position", "sources\[1\]", ...
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something does not belong to the digest or root that it is said to belong to.
    #[error("{0}: the opening does not verify")]
    Opening(String),
    /// The block reads something that is not opened.
    #[error("{place}: {what} is read and not opened")]
    Missing {
        /// "inputs\[0\]", "rows" or "tokens".
        place: String,
        /// Which chunk or row.
        what: String,
    },
    /// Something is opened that the block does not read.
    #[error("{0}: is opened and not read")]
    Unused(String),
}

impl Refusal {
    /// The part of the statement at fault.
    pub fn place(&self) -> String {
        match self {
            Self::Malformed(GraphDecodeError::Field { place, .. })
            | Self::Contradiction { place, .. }
            | Self::Opening(place)
            | Self::Missing { place, .. }
            | Self::Unused(place) => place.clone(),
            Self::Malformed(GraphDecodeError::Encoding(error)) => format!("byte {}", error.offset),
            Self::TooLong => "statement".to_owned(),
        }
    }

    /// What is wrong with it.
    pub fn reason(&self) -> String {
        match self {
            Self::Malformed(GraphDecodeError::Field { reason, .. })
            | Self::Contradiction { reason, .. } => reason.clone(),
            Self::Malformed(GraphDecodeError::Encoding(error)) => error.reason.to_string(),
            Self::TooLong => "is longer than 16 MiB".to_owned(),
            Self::Opening(_) => "the opening does not verify".to_owned(),
            Self::Missing { what, .. } => format!("{what} is read and not opened"),
            Self::Unused(_) => "is opened and not read".to_owned(),
        }
    }
}

/// A tree by its root and its number of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Root.
    pub root: Hash,
    /// Leaves.
    pub size: u64,
}

/// A leaf's data, with its path in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Data of the leaf.
    pub data: Vec<u8>,
    /// Sibling hashes from the leaf upwards.
    pub path: Vec<Hash>,
}

/// A chunk of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its place.
    pub index: u64,
    /// Its bytes.
    pub chunk: Vec<u8>,
    /// Sibling chaining values from the chunk upwards.
    pub path: Vec<Hash>,
}

/// An input of the disputed node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its digest.
    pub digest: Hash,
    /// Where the trace has it; empty for a state that is older than the trace.
    pub path: Vec<Hash>,
    /// The chunks that the block reads, ascending.
    pub chunks: Vec<Chunk>,
}

/// A leaf of the state tree, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Data of the leaf.
    pub leaf: Vec<u8>,
    /// Its place.
    pub index: u64,
    /// Leaves of the tree.
    pub size: u64,
    /// Sibling hashes from the leaf upwards.
    pub path: Vec<Hash>,
}

/// A committed sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place.
    pub index: u64,
    /// Bytes of x and y.
    pub row: Vec<u8>,
    /// Sibling hashes from the row upwards.
    pub path: Vec<Hash>,
}

/// One block of one element of one node, with all that its recomputation reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Nodes of the step graph.
    pub graph: Tree,
    /// Digests of the outputs of all nodes, step by step, agreed before `position`.
    pub trace: Tree,
    /// The disputed leaf of the trace.
    pub position: u64,
    /// Root of the state before the first step of the trace, where that matters.
    pub base: Option<Hash>,
    /// The committed samples.
    pub samples: Tree,
    /// How they are windows of tokens, whose plain BLAKE3 the root is then; None for rows.
    pub windows: Option<Tokens>,
    /// The disputed node.
    pub node: Opened,
    /// The nodes that put out its inputs; for a `state` after the first step its `next_state`.
    pub sources: Vec<Opened>,
    /// Index of that `next_state`; 0 in all other cases.
    pub source_index: u64,
    /// One for each input; for a `state` its value.
    pub inputs: Vec<Input>,
    /// Leaf of a `state` in the first step.
    pub state_leaf: Option<Member>,
    /// The sample rows that the block reads, ascending.
    pub rows: Vec<Row>,
    /// The chunks of the tokens that the block reads, ascending; none where there are no windows.
    pub tokens: Vec<Chunk>,
    /// Flat index of the disputed element.
    pub element: u64,
    /// The disputed block of its fold.
    pub block: u64,
    /// The agreed state before the block; empty for the first.
    pub before: Vec<u8>,
    /// What each side claims: the element if it has one block, else the state after the block.
    pub claims: [Vec<u8>; 2],
}

impl Statement {
    /// Decodes canonical bytes.
    pub fn decode(data: &[u8]) -> Result<Self, Refusal> {
        if data.len() > MAX_STATEMENT {
            return Err(Refusal::TooLong);
        }
        let value = cbor::decode(data).map_err(GraphDecodeError::from)?;
        let mut fields = Fields::new(value, "statement".to_owned())?;
        let mut windowed = false;
        let statement = Self {
            graph: tree(&mut fields, "graph")?,
            trace: tree(&mut fields, "trace")?,
            position: count(&mut fields, "position")?,
            base: match fields.take("base")? {
                Value::Bytes(bytes) if bytes.is_empty() => None,
                value => Some(hash(&fields, "base", value)?),
            },
            samples: tree(&mut fields, "samples")?,
            windows: windows(&mut fields)?.inspect(|_| windowed = true),
            node: opened(map(&mut fields, "node"))?,
            sources: maps(&mut fields, "sources", MAX_INPUTS)?
                .map(opened)
                .collect::<Result<_, _>>()?,
            source_index: count(&mut fields, "source_index")?,
            inputs: maps(&mut fields, "inputs", MAX_INPUTS)?
                .map(input)
                .collect::<Result<_, _>>()?,
            state_leaf: match fields.take("state_leaf")? {
                Value::Map(entries) if entries.is_empty() => None,
                value => Some(member(Fields::new(
                    value,
                    "statement.state_leaf".to_owned(),
                )?)?),
            },
            rows: maps(&mut fields, "rows", MAX_OPENED)?
                .map(row)
                .collect::<Result<_, _>>()?,
            tokens: if windowed {
                maps(&mut fields, "tokens", MAX_OPENED)?
                    .map(chunk)
                    .collect::<Result<_, _>>()?
            } else {
                Vec::new()
            },
            element: count(&mut fields, "element")?,
            block: count(&mut fields, "block")?,
            before: fields.bytes("before")?,
            claims: match <[Value; 2]>::try_from(fields.list("claims")?) {
                Ok([Value::Bytes(first), Value::Bytes(second)]) => [first, second],
                _ => return Err(fields.error("claims", "expected two byte strings").into()),
            },
        };
        fields.done()?;
        Ok(statement)
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let bytes = |data: &[u8]| Value::Bytes(data.to_vec());
        let path = |path: &[Hash]| Value::Array(path.iter().map(|hash| bytes(hash)).collect());
        let tree =
            |tree: &Tree| encode_map([("root", bytes(&tree.root)), ("size", int(tree.size))]);
        let opened =
            |leaf: &Opened| encode_map([("data", bytes(&leaf.data)), ("path", path(&leaf.path))]);
        let chunk = |chunk: &Chunk| {
            encode_map([
                ("chunk", bytes(&chunk.chunk)),
                ("index", int(chunk.index)),
                ("path", path(&chunk.path)),
            ])
        };
        let input = |input: &Input| {
            encode_map([
                (
                    "chunks",
                    Value::Array(input.chunks.iter().map(chunk).collect()),
                ),
                ("digest", bytes(&input.digest)),
                ("path", path(&input.path)),
            ])
        };
        let row = |row: &Row| {
            encode_map([
                ("index", int(row.index)),
                ("path", path(&row.path)),
                ("row", bytes(&row.row)),
            ])
        };
        let member = |member: &Member| {
            encode_map([
                ("index", int(member.index)),
                ("leaf", bytes(&member.leaf)),
                ("path", path(&member.path)),
                ("size", int(member.size)),
            ])
        };
        let [first, second] = &self.claims;
        let mut entries = vec![
            ("base", bytes(self.base.as_ref().map_or(&[], |root| root))),
            ("before", bytes(&self.before)),
            ("block", int(self.block)),
            ("claims", Value::Array(vec![bytes(first), bytes(second)])),
            ("element", int(self.element)),
            ("graph", tree(&self.graph)),
            (
                "inputs",
                Value::Array(self.inputs.iter().map(input).collect()),
            ),
            ("node", opened(&self.node)),
            ("position", int(self.position)),
            ("rows", Value::Array(self.rows.iter().map(row).collect())),
            ("samples", tree(&self.samples)),
            ("source_index", int(self.source_index)),
            (
                "sources",
                Value::Array(self.sources.iter().map(opened).collect()),
            ),
            (
                "state_leaf",
                self.state_leaf.as_ref().map_or(encode_map([]), member),
            ),
            ("trace", tree(&self.trace)),
        ];
        if let Some(Tokens { windows, context }) = &self.windows {
            let dtype = TOKEN_WIDTHS
                .iter()
                .find(|(_, width)| *width == windows.width);
            let map = encode_map([
                ("context", int(*context as u64)),
                (
                    "dtype",
                    Value::Text(dtype.map_or("", |(name, _)| name).to_owned()),
                ),
                ("shift", int(windows.shift as u64)),
                ("stride", int(windows.stride as u64)),
                ("tokens", int(windows.tokens as u64)),
            ]);
            let tokens = Value::Array(self.tokens.iter().map(chunk).collect());
            entries.extend([("tokens", tokens), ("windows", map)]);
        }
        let entries = entries.into_iter();
        cbor::encode(&Value::Map(
            entries
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        ))
    }
}

fn int(value: u64) -> Value {
    Value::Int(value.into())
}

pub(super) fn encode_map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    Value::Map(entries.into())
}

fn count(fields: &mut Fields, name: &str) -> Result<u64, GraphDecodeError> {
    fields.int(name, 0, MAX_COUNT).map(|value| value as u64)
}

fn hash(fields: &Fields, name: &str, value: Value) -> Result<Hash, GraphDecodeError> {
    let bytes = match value {
        Value::Bytes(bytes) => Hash::try_from(bytes).ok(),
        _ => None,
    };
    bytes.ok_or_else(|| fields.error(name, "expected 32 bytes"))
}

fn path(fields: &mut Fields) -> Result<Vec<Hash>, GraphDecodeError> {
    let items = fields.list("path")?;
    if items.len() > MAX_PATH {
        return Err(fields.error("path", "more than 64 hashes"));
    }
    let hashes = items.into_iter();
    hashes.map(|item| hash(fields, "path", item)).collect()
}

fn map(fields: &mut Fields, name: &str) -> Result<Fields, GraphDecodeError> {
    let place = format!("{}.{name}", fields.place);
    Fields::new(fields.take(name)?, place)
}

/// The maps of a list of at most `most`, each as it is asked for.
fn maps(
    fields: &mut Fields,
    name: &str,
    most: usize,
) -> Result<impl Iterator<Item = Result<Fields, GraphDecodeError>> + use<>, GraphDecodeError> {
    let items = fields.list(name)?;
    if items.len() > most {
        return Err(fields.error(name, &format!("more than {most} items")));
    }
    let place = format!("{}.{name}", fields.place);
    let items = items.into_iter().enumerate();
    Ok(items.map(move |(i, item)| Fields::new(item, format!("{place}[{i}]"))))
}

/// The windows of tokens that the samples are, if the field is there.
fn windows(fields: &mut Fields) -> Result<Option<Tokens>, GraphDecodeError> {
    if !fields.has("windows") {
        return Ok(None);
    }
    let mut fields = map(fields, "windows")?;
    let name = fields.text("dtype")?;
    let found = TOKEN_WIDTHS.iter().find(|(dtype, _)| *dtype == name);
    let width = match found {
        Some(&(_, width)) => width,
        None => return Err(fields.error("dtype", "no type of tokens")),
    };
    let mut take = |name: &str, lo: i128, hi: i128| {
        let value = fields.int(name, lo, hi)?;
        usize::try_from(value).map_err(|_| fields.error(name, "is more than this machine can hold"))
    };
    let tokens = take("tokens", 1, MAX_TOKENS)?;
    let context = take("context", 1, MAX_CONTEXT)?;
    let stride = take("stride", 1, MAX_TOKENS)?;
    let shift = take("shift", 0, MAX_TOKENS)?;
    fields.done()?;
    Ok(Some(Tokens {
        windows: Windows {
            width,
            tokens,
            stride,
            shift,
        },
        context,
    }))
}

fn tree(fields: &mut Fields, name: &str) -> Result<Tree, GraphDecodeError> {
    let mut fields = map(fields, name)?;
    let root = fields.take("root")?;
    let tree = Tree {
        root: hash(&fields, "root", root)?,
        size: count(&mut fields, "size")?,
    };
    fields.done()?;
    Ok(tree)
}

fn opened(fields: Result<Fields, GraphDecodeError>) -> Result<Opened, GraphDecodeError> {
    let mut fields = fields?;
    let opened = Opened {
        data: fields.bytes("data")?,
        path: path(&mut fields)?,
    };
    fields.done()?;
    Ok(opened)
}

fn input(fields: Result<Fields, GraphDecodeError>) -> Result<Input, GraphDecodeError> {
    let mut fields = fields?;
    let digest = fields.take("digest")?;
    let input = Input {
        digest: hash(&fields, "digest", digest)?,
        path: path(&mut fields)?,
        chunks: maps(&mut fields, "chunks", MAX_OPENED)?
            .map(chunk)
            .collect::<Result<_, _>>()?,
    };
    fields.done()?;
    Ok(input)
}

fn chunk(fields: Result<Fields, GraphDecodeError>) -> Result<Chunk, GraphDecodeError> {
    let mut fields = fields?;
    let chunk = Chunk {
        index: count(&mut fields, "index")?,
        chunk: fields.bytes("chunk")?,
        path: path(&mut fields)?,
    };
    fields.done()?;
    Ok(chunk)
}

fn row(fields: Result<Fields, GraphDecodeError>) -> Result<Row, GraphDecodeError> {
    let mut fields = fields?;
    let row = Row {
        index: count(&mut fields, "index")?,
        row: fields.bytes("row")?,
        path: path(&mut fields)?,
    };
    fields.done()?;
    Ok(row)
}

fn member(mut fields: Fields) -> Result<Member, GraphDecodeError> {
    let member = Member {
        leaf: fields.bytes("leaf")?,
        index: count(&mut fields, "index")?,
        size: count(&mut fields, "size")?,
        path: path(&mut fields)?,
    };
    fields.done()?;
    Ok(member)
}
