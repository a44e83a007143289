//! The step graph as data, and its strict decoding. Twin of `vtrain/wire/graph.py`.
//!
//! Here is only form: a node refers to earlier nodes, fields have their types and bounds. Whether
//! operators, shapes and dtypes fit together is judged when a graph is compiled (`ops::Kernel`).

use std::collections::BTreeMap;

use crate::cbor::{self, Value};
use crate::number::Dtype;

/// Bytes of a name.
const MAX_TEXT: usize = 4096;
/// Items of a list.
const MAX_ITEMS: usize = 1 << 20;
/// Largest extent of an axis.
const MAX_EXTENT: i128 = 1 << 48;
/// Largest magnitude of an exponent.
const MAX_EXPONENT: i128 = 512;
/// Outputs that a reference can name.
const MAX_OUTPUTS: i128 = 1 << 16;

/// Why bytes are not a step graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphDecodeError {
    /// They are not canonical CBOR.
    #[error(transparent)]
    Encoding(#[from] cbor::DecodeError),
    /// A field is missing, unknown, of another type or out of bounds.
    #[error("{place}: {reason}")]
    Field {
        /// "node 3", "node 3.inputs", ...
        place: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ref {
    /// Index of the node.
    pub node: usize,
    /// Index of its output.
    pub output: usize,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attr {
    /// An integer of at most 64 bits.
    Int(i128),
    /// A text.
    Text(String),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A list of integers.
    Ints(Vec<i128>),
}

/// Type of a value, with the claimed range of its mantissas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: Dtype,
    /// Extents, each at most 2^48: their product may overflow.
    pub shape: Vec<usize>,
    /// Fraction bits f: value = mantissa * 2^-f.
    pub exponent: i32,
    /// Least mantissa.
    pub lo: i64,
    /// Greatest mantissa.
    pub hi: i64,
}

/// One operator application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What people call it.
    pub name: String,
    /// Name of the operator.
    pub op: String,
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attr>,
    /// Where its inputs come from: earlier nodes.
    pub inputs: Vec<Ref>,
    /// Types of its outputs.
    pub outputs: Vec<TensorType>,
}

/// One training step: nodes in execution order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepGraph {
    /// The nodes; every input is an output of an earlier one.
    pub nodes: Vec<Node>,
}

impl StepGraph {
    /// Decodes canonical bytes.
    pub fn decode(data: &[u8]) -> Result<Self, GraphDecodeError> {
        let Value::Array(items) = cbor::decode(data)? else {
            return Err(refuse("graph", "a step graph is an array of nodes"));
        };
        let mut nodes: Vec<Node> = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let node = Node::from_value(item, index)?;
            for input in &node.inputs {
                if nodes
                    .get(input.node)
                    .is_none_or(|n| input.output >= n.outputs.len())
                {
                    let reason = format!("node {} has no output {}", input.node, input.output);
                    return Err(refuse(&format!("node {index}"), &reason));
                }
            }
            nodes.push(node);
        }
        Ok(Self { nodes })
    }
}

impl Node {
    /// Decodes the canonical bytes of one node, which may refer to any node below 2^48.
    pub fn decode(data: &[u8]) -> Result<Self, GraphDecodeError> {
        Self::from_value(cbor::decode(data)?, 1 << 48)
    }

    fn from_value(value: Value, index: usize) -> Result<Self, GraphDecodeError> {
        let mut fields = Fields::new(value, format!("node {index}"))?;
        let attrs = match fields.take("attrs")? {
            Value::Map(entries) => entries
                .into_iter()
                .map(|(key, value)| Ok((key, fields.attr(value)?)))
                .collect::<Result<_, GraphDecodeError>>()?,
            _ => return Err(fields.error("attrs", "expected a map")),
        };
        let inputs = fields
            .list("inputs")?
            .into_iter()
            .map(|pair| match pair {
                Value::Array(pair) => match pair.as_slice() {
                    &[Value::Int(node), Value::Int(output)]
                        if (0..index as i128).contains(&node)
                            && (0..MAX_OUTPUTS).contains(&output) =>
                    {
                        Ok(Ref {
                            node: node as usize,
                            output: output as usize,
                        })
                    }
                    _ => Err(fields.error("inputs", "an input is [earlier node, output]")),
                },
                _ => Err(fields.error("inputs", "an input is [earlier node, output]")),
            })
            .collect::<Result<_, _>>()?;
        let name = fields.text("name")?;
        let op = fields.text("op")?;
        let outputs = fields
            .list("outputs")?
            .into_iter()
            .map(|item| TensorType::from_value(item, &fields.place))
            .collect::<Result<_, _>>()?;
        fields.done()?;
        Ok(Self {
            name,
            op,
            attrs,
            inputs,
            outputs,
        })
    }
}

impl TensorType {
    fn from_value(value: Value, place: &str) -> Result<Self, GraphDecodeError> {
        let mut fields = Fields::new(value, place.to_owned())?;
        let name = fields.text("dtype")?;
        let dtype = Dtype::from_name(&name)
            .ok_or_else(|| fields.error("dtype", &format!("unknown dtype {name:?}")))?;
        let exponent = fields.int("exponent", -MAX_EXPONENT, MAX_EXPONENT)? as i32;
        let hi = fields.int("hi", i64::MIN.into(), i64::MAX.into())? as i64;
        let lo = fields.int("lo", i64::MIN.into(), i64::MAX.into())? as i64;
        let shape = fields
            .list("shape")?
            .into_iter()
            .map(|item| match item {
                Value::Int(extent) if (0..=MAX_EXTENT).contains(&extent) => Ok(extent as usize),
                _ => Err(fields.error("shape", "an extent is an integer in [0, 2^48]")),
            })
            .collect::<Result<_, _>>()?;
        fields.done()?;
        Ok(Self {
            dtype,
            shape,
            exponent,
            lo,
            hi,
        })
    }
}

fn refuse(place: &str, reason: &str) -> GraphDecodeError {
    GraphDecodeError::Field {
        place: place.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Takes the fields of one map, and refuses what is left over.
pub(crate) struct Fields {
    left: BTreeMap<String, Value>,
    pub(crate) place: String,
}

impl Fields {
    pub(crate) fn new(value: Value, place: String) -> Result<Self, GraphDecodeError> {
        match value {
            Value::Map(entries) => Ok(Self {
                left: entries.into_iter().collect(),
                place,
            }),
            _ => Err(refuse(&place, "expected a map")),
        }
    }

    pub(crate) fn error(&self, name: &str, reason: &str) -> GraphDecodeError {
        refuse(&format!("{}.{name}", self.place), reason)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    pub(crate) fn take(&mut self, name: &str) -> Result<Value, GraphDecodeError> {
        self.left
            .remove(name)
            .ok_or_else(|| self.error(name, "the field is missing"))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<String, GraphDecodeError> {
        match self.take(name)? {
            Value::Text(text) if text.len() <= MAX_TEXT => Ok(text),
            _ => Err(self.error(name, "expected text of at most 4096 bytes")),
        }
    }

    pub(crate) fn int(&mut self, name: &str, lo: i128, hi: i128) -> Result<i128, GraphDecodeError> {
        match self.take(name)? {
            Value::Int(value) if (lo..=hi).contains(&value) => Ok(value),
            _ => Err(self.error(name, &format!("expected an integer in [{lo}, {hi}]"))),
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<Value>, GraphDecodeError> {
        match self.take(name)? {
            Value::Array(items) if items.len() <= MAX_ITEMS => Ok(items),
            _ => Err(self.error(
                name,
                &format!("expected a list of at most {MAX_ITEMS} items"),
            )),
        }
    }

    pub(crate) fn bytes(&mut self, name: &str) -> Result<Vec<u8>, GraphDecodeError> {
        match self.take(name)? {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.error(name, "expected bytes")),
        }
    }

    fn attr(&self, value: Value) -> Result<Attr, GraphDecodeError> {
        let error = || {
            self.error(
                "attrs",
                "an attribute is an integer, text, bytes or a list of integers",
            )
        };
        match value {
            Value::Int(value) => Ok(Attr::Int(value)),
            Value::Text(text) => Ok(Attr::Text(text)),
            Value::Bytes(bytes) => Ok(Attr::Bytes(bytes)),
            Value::Array(items) => items
                .into_iter()
                .map(|item| {
                    if let Value::Int(value) = item {
                        Ok(value)
                    } else {
                        Err(error())
                    }
                })
                .collect::<Result<_, _>>()
                .map(Attr::Ints),
            Value::Map(_) => Err(error()),
        }
    }

    pub(crate) fn done(self) -> Result<(), GraphDecodeError> {
        match self.left.keys().next() {
            Some(name) => Err(self.error(name, "the field is unknown")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: Vec<(&str, Value)>) -> Value {
        Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    }

    fn node(inputs: Vec<Value>, extent: i128) -> Value {
        let output = map(vec![
            ("dtype", Value::Text("i16".into())),
            ("exponent", Value::Int(3)),
            ("hi", Value::Int(5)),
            ("lo", Value::Int(-5)),
            ("shape", Value::Array(vec![Value::Int(extent)])),
        ]);
        map(vec![
            ("attrs", map(vec![("shift", Value::Int(-1))])),
            ("inputs", Value::Array(inputs)),
            ("name", Value::Text("n".into())),
            ("op", Value::Text("relu".into())),
            ("outputs", Value::Array(vec![output])),
        ])
    }

    fn decode(nodes: Vec<Value>) -> Result<StepGraph, GraphDecodeError> {
        StepGraph::decode(&cbor::encode(&Value::Array(nodes)).unwrap())
    }

    fn input(node: i128, output: i128) -> Value {
        Value::Array(vec![Value::Int(node), Value::Int(output)])
    }

    #[test]
    fn a_graph_decodes() {
        let graph = decode(vec![node(vec![], 7), node(vec![input(0, 0)], 7)]).unwrap();
        assert_eq!(graph.nodes[1].inputs, [Ref { node: 0, output: 0 }]);
        assert_eq!(graph.nodes[0].outputs[0].shape, [7]);
        assert_eq!(graph.nodes[0].attrs["shift"], Attr::Int(-1));
    }

    #[test]
    fn form_is_strict_and_errors_name_the_node() {
        let place = |nodes| match decode(nodes) {
            Err(GraphDecodeError::Field { place, .. }) => place,
            other => panic!("{other:?}"),
        };
        assert_eq!(place(vec![node(vec![input(0, 0)], 1)]), "node 0.inputs");
        assert_eq!(
            place(vec![node(vec![], 1), node(vec![input(0, 1)], 1)]),
            "node 1"
        );
        assert_eq!(place(vec![node(vec![], -1)]), "node 0.shape");
        assert_eq!(place(vec![node(vec![], (1 << 48) + 1)]), "node 0.shape");
        assert_eq!(place(vec![Value::Int(1)]), "node 0");
        let Value::Map(mut entries) = node(vec![], 1) else {
            panic!()
        };
        entries.push(("zzz".into(), Value::Int(0)));
        assert_eq!(place(vec![Value::Map(entries.clone())]), "node 0.zzz");
        entries.truncate(3);
        assert_eq!(place(vec![Value::Map(entries)]), "node 0.op");
        assert!(matches!(
            StepGraph::decode(b"\x9f"),
            Err(GraphDecodeError::Encoding(_))
        ));
    }
}
