//! The canonical encoding: a strict subset of CBOR with exactly one encoding per value.
//!
//! Twin of `vtrain/wire/cbor.py`, refusing the same bytes for the same reason at the same offset:
//! that of the first byte (head) of the item at fault, of the first trailing byte, or the length of
//! the data where an item is missing. RFC 8949 section 4.2.1, restricted to integers of 64 bits,
//! byte strings, text, arrays and maps with text keys.

use std::str;

/// Arrays and maps inside one another that a document may have.
pub const MAX_DEPTH: usize = 32;
/// Bytes that a document may have.
pub const MAX_SIZE: usize = 64 << 20;
/// Values and map keys that a document may have.
pub const MAX_ITEMS: usize = 1 << 21;

const INT_MIN: i128 = -(1 << 63);
const INT_MAX: i128 = (1 << 64) - 1;

const UINT: u8 = 0;
const NINT: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const TAG: u8 = 6;
const SIMPLE: u8 = 7;

/// Anything that has a canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer in [-2^63, 2^64 - 1].
    Int(i128),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A text.
    Text(String),
    /// A list of values.
    Array(Vec<Value>),
    /// Entries with unique keys; `encode` sorts them, `decode` returns them in canonical order.
    Map(Vec<(String, Value)>),
}

/// Why bytes are not canonical. The texts equal those of the Python twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The document is longer than `MAX_SIZE`.
    #[error("document is over the size limit")]
    TooLong,
    /// The data ends where an item should begin.
    #[error("an item is missing")]
    Missing,
    /// The document has more than `MAX_ITEMS` values and map keys.
    #[error("more items than the limit")]
    TooMany,
    /// Major type 6.
    #[error("tags are not allowed")]
    Tag,
    /// Major type 7.
    #[error("floats and simple values are not allowed")]
    Simple,
    /// Additional information 31.
    #[error("indefinite lengths are not allowed")]
    Indefinite,
    /// Additional information 28 to 30.
    #[error("reserved additional information")]
    Reserved,
    /// The data ends within a head.
    #[error("item head is cut off")]
    HeadCut,
    /// An integer or length could be written shorter.
    #[error("not the shortest form")]
    NotShortest,
    /// A negative integer that does not fit int64.
    #[error("integer is under -2^63")]
    IntTooLow,
    /// A string, array or map claims more than is there.
    #[error("length is over the bytes that remain")]
    TooFewBytes,
    /// Arrays and maps nest beyond `MAX_DEPTH`.
    #[error("nested too deeply")]
    TooDeep,
    /// A map key of another type.
    #[error("map key is not text")]
    KeyNotText,
    /// A key equal to the one before it.
    #[error("duplicate map key")]
    DuplicateKey,
    /// A key that sorts before the one before it.
    #[error("map keys out of order")]
    UnsortedKeys,
    /// Text that is not UTF-8.
    #[error("text is not UTF-8")]
    NotUtf8,
    /// Bytes after the document.
    #[error("trailing bytes")]
    Trailing,
}

/// A refusal with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason}")]
pub struct DecodeError {
    /// What is wrong.
    pub reason: Reason,
    /// Where: see the module's page.
    pub offset: usize,
}

/// A value without a canonical encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An integer outside [-2^63, 2^64 - 1].
    #[error("integer has more than 64 bits")]
    IntRange,
    /// Two entries of a map have one key.
    #[error("duplicate map key")]
    DuplicateKey,
    /// Arrays and maps nest beyond `MAX_DEPTH`.
    #[error("nested too deeply")]
    TooDeep,
}

/// The one encoding of `value`.
pub fn encode(value: &Value) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    encode_into(&mut out, value, MAX_DEPTH)?;
    Ok(out)
}

fn encode_into(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), EncodeError> {
    match value {
        Value::Int(int) if !(INT_MIN..=INT_MAX).contains(int) => return Err(EncodeError::IntRange),
        Value::Int(int) if *int >= 0 => append_head(out, UINT, *int as u64),
        Value::Int(int) => append_head(out, NINT, (-1 - int) as u64),
        Value::Bytes(bytes) => {
            append_head(out, BYTES, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        Value::Text(text) => append_text(out, text),
        Value::Array(_) | Value::Map(_) if depth == 0 => return Err(EncodeError::TooDeep),
        Value::Array(items) => {
            append_head(out, ARRAY, items.len() as u64);
            for item in items {
                encode_into(out, item, depth - 1)?;
            }
        }
        Value::Map(entries) => {
            let mut keyed: Vec<(Vec<u8>, &Value)> = entries
                .iter()
                .map(|(key, item)| {
                    let mut encoded = Vec::new();
                    append_text(&mut encoded, key);
                    (encoded, item)
                })
                .collect();
            keyed.sort_by(|a, b| a.0.cmp(&b.0));
            if keyed.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(EncodeError::DuplicateKey);
            }
            append_head(out, ARRAY + 1, keyed.len() as u64);
            for (key, item) in keyed {
                out.extend_from_slice(&key);
                encode_into(out, item, depth - 1)?;
            }
        }
    }
    Ok(())
}

fn append_text(out: &mut Vec<u8>, text: &str) {
    append_head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn append_head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let bytes = argument.to_be_bytes();
    match argument {
        0..=23 => out.push(major << 5 | argument as u8),
        24..=0xff => out.extend_from_slice(&[major << 5 | 24, argument as u8]),
        0x100..=0xffff => {
            out.push(major << 5 | 25);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major << 5 | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major << 5 | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Decodes one value that fills `data`; nothing but what `encode` writes is accepted.
pub fn decode(data: &[u8]) -> Result<Value, DecodeError> {
    if data.len() > MAX_SIZE {
        return Err(refusal(Reason::TooLong, MAX_SIZE));
    }
    let mut decoder = Decoder {
        data,
        position: 0,
        items_left: MAX_ITEMS,
    };
    let value = decoder.value(MAX_DEPTH)?;
    if decoder.position != data.len() {
        return Err(refusal(Reason::Trailing, decoder.position));
    }
    Ok(value)
}

fn refusal(reason: Reason, offset: usize) -> DecodeError {
    DecodeError { reason, offset }
}

struct Decoder<'a> {
    data: &'a [u8],
    position: usize,
    items_left: usize,
}

impl<'a> Decoder<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let start = self.position;
        let (major, argument) = self.head()?;
        match major {
            UINT => return Ok(Value::Int(argument.into())),
            NINT if argument >= 1 << 63 => return Err(refusal(Reason::IntTooLow, start)),
            NINT => return Ok(Value::Int(-1 - i128::from(argument))),
            BYTES => return Ok(Value::Bytes(self.span(argument, start)?.to_vec())),
            TEXT => return Ok(Value::Text(self.text(argument, start)?.to_owned())),
            _ => {}
        }
        // Each item takes at least one byte, each map entry two.
        let least = if major == ARRAY {
            argument
        } else {
            argument.saturating_mul(2)
        };
        if least > self.remaining() {
            return Err(refusal(Reason::TooFewBytes, start));
        }
        if depth == 0 {
            return Err(refusal(Reason::TooDeep, start));
        }
        if major == ARRAY {
            let mut items = Vec::new();
            for _ in 0..argument {
                items.push(self.value(depth - 1)?);
            }
            return Ok(Value::Array(items));
        }
        let mut entries = Vec::new();
        let mut previous: &[u8] = &[];
        for _ in 0..argument {
            let start = self.position;
            let (major, length) = self.head()?;
            if major != TEXT {
                return Err(refusal(Reason::KeyNotText, start));
            }
            let key = self.text(length, start)?;
            let encoded = &self.data[start..self.position];
            if encoded <= previous {
                let same = encoded == previous;
                let reason = if same {
                    Reason::DuplicateKey
                } else {
                    Reason::UnsortedKeys
                };
                return Err(refusal(reason, start));
            }
            previous = encoded;
            entries.push((key.to_owned(), self.value(depth - 1)?));
        }
        Ok(Value::Map(entries))
    }

    fn head(&mut self) -> Result<(u8, u64), DecodeError> {
        let start = self.position;
        let first = *self
            .data
            .get(start)
            .ok_or(refusal(Reason::Missing, start))?;
        if self.items_left == 0 {
            return Err(refusal(Reason::TooMany, start));
        }
        self.items_left -= 1;
        let (major, info) = (first >> 5, first & 31);
        match (major, info) {
            (TAG, _) => return Err(refusal(Reason::Tag, start)),
            (SIMPLE, _) => return Err(refusal(Reason::Simple, start)),
            (_, 0..=23) => {
                self.position = start + 1;
                return Ok((major, info.into()));
            }
            (_, 31) => return Err(refusal(Reason::Indefinite, start)),
            (_, 28..) => return Err(refusal(Reason::Reserved, start)),
            _ => {}
        }
        let width = 1 << (info - 24);
        let end = start + 1 + width;
        let bytes = self
            .data
            .get(start + 1..end)
            .ok_or(refusal(Reason::HeadCut, start))?;
        let argument = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let least = if width == 1 { 24 } else { 1 << (4 * width) };
        if argument < least {
            return Err(refusal(Reason::NotShortest, start));
        }
        self.position = end;
        Ok((major, argument))
    }

    fn remaining(&self) -> u64 {
        (self.data.len() - self.position) as u64
    }

    fn span(&mut self, length: u64, start: usize) -> Result<&'a [u8], DecodeError> {
        if length > self.remaining() {
            return Err(refusal(Reason::TooFewBytes, start));
        }
        let span = &self.data[self.position..self.position + length as usize];
        self.position += length as usize;
        Ok(span)
    }

    fn text(&mut self, length: u64, start: usize) -> Result<&'a str, DecodeError> {
        let span = self.span(length, start)?;
        str::from_utf8(span).map_err(|_| refusal(Reason::NotUtf8, start))
    }
}
