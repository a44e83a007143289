//! Reading a node: attributes with their bounds, dtypes and shapes.

use crate::graph::{Attr, Node, TensorType};
use crate::number::Dtype;

use crate::window::Window;

/// Largest tensor; keeps a hostile graph from asking for unbounded memory.
pub const MAX_ELEMENTS: usize = 1 << 32;
/// Most axes of a tensor.
const MAX_RANK: i64 = 8;

/// Why a node cannot be run; the graph's owner is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

/// Refuses a node, with a formatted reason.
macro_rules! refuse {
    ($($reason:tt)*) => { return Err($crate::ops::OpError(format!($($reason)*))) };
}
pub(super) use refuse;

/// Dtype and shape of a tensor of at most [`MAX_ELEMENTS`] elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Element type.
    pub dtype: Dtype,
    /// Extents.
    pub shape: Vec<usize>,
    size: usize,
}

impl Form {
    /// Refuses a shape of too many elements.
    pub fn new(dtype: Dtype, shape: Vec<usize>) -> Result<Self, OpError> {
        match checked_size(&shape) {
            Some(size) if size <= MAX_ELEMENTS => Ok(Self { dtype, shape, size }),
            _ => refuse!("a tensor of shape {shape:?} is too large"),
        }
    }

    /// The form of a claimed type.
    pub fn of(tensor: &TensorType) -> Result<Self, OpError> {
        Self::new(tensor.dtype, tensor.shape.clone())
    }

    /// The same shape of another dtype.
    pub(crate) fn with_dtype(&self, dtype: Dtype) -> Self {
        Self {
            dtype,
            ..self.clone()
        }
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of the elements.
    pub fn byte_len(&self) -> usize {
        self.size * self.dtype.size()
    }

    pub(super) fn is_digest(&self) -> bool {
        self.dtype == Dtype::U8 && self.shape == [32]
    }

    pub(super) fn is_scalar(&self) -> bool {
        self.dtype == Dtype::I64 && self.shape.is_empty()
    }
}

/// Product of extents; a zero anywhere makes it zero.
pub(super) fn checked_size(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .try_fold(1usize, |size, &extent| size.checked_mul(extent))
}

/// Which half of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The input.
    X,
    /// The label or target.
    Y,
}

/// A node with the forms of its inputs, while it is being read.
pub(super) struct Reader<'a> {
    pub node: &'a Node,
    pub inputs: &'a [Form],
}

impl<'a> Reader<'a> {
    pub fn attr(&self, name: &str) -> Result<&'a Attr, OpError> {
        self.node
            .attrs
            .get(name)
            .ok_or_else(|| OpError(format!("attribute {name} is missing")))
    }

    pub fn int(&self, name: &str, lo: i64, hi: i64) -> Result<i64, OpError> {
        match self.attr(name)? {
            &Attr::Int(x) if (i128::from(lo)..=i128::from(hi)).contains(&x) => Ok(x as i64),
            _ => refuse!("attribute {name} must be an integer in [{lo}, {hi}]"),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, OpError> {
        Ok(self.int(name, 0, 1)? == 1)
    }

    pub fn text(&self, name: &str) -> Result<&'a str, OpError> {
        match self.attr(name)? {
            Attr::Text(text) => Ok(text),
            _ => refuse!("attribute {name} must be text"),
        }
    }

    pub fn dtype(&self, name: &str) -> Result<Dtype, OpError> {
        let found = Dtype::from_name(self.text(name)?);
        found.ok_or_else(|| OpError(format!("attribute {name} names no dtype")))
    }

    pub fn ints(&self, name: &str) -> Result<&'a [i128], OpError> {
        match self.attr(name)? {
            Attr::Ints(items) => Ok(items),
            _ => refuse!("attribute {name} must be integers"),
        }
    }

    pub fn longs(&self, name: &str) -> Result<Vec<i64>, OpError> {
        let narrow = |&x: &i128| i64::try_from(x).ok();
        let items: Option<Vec<i64>> = self.ints(name)?.iter().map(narrow).collect();
        items.ok_or_else(|| OpError(format!("attribute {name} must be int64")))
    }

    /// Extents, each at most [`MAX_ELEMENTS`].
    pub fn extents(&self, name: &str) -> Result<Vec<usize>, OpError> {
        let narrow = |&x: &i128| usize::try_from(x).ok().filter(|&x| x <= MAX_ELEMENTS);
        let items: Option<Vec<usize>> = self.ints(name)?.iter().map(narrow).collect();
        items.ok_or_else(|| OpError(format!("attribute {name} must be extents")))
    }

    /// The attribute `axis` of a tensor of this shape.
    pub fn axis(&self, shape: &[usize]) -> Result<usize, OpError> {
        let axis = self.int("axis", 0, MAX_RANK - 1)? as usize;
        if axis >= shape.len() {
            refuse!("there is no axis {axis} in shape {shape:?}");
        }
        Ok(axis)
    }

    fn exactly<const N: usize>(&self, name: &str) -> Result<[usize; N], OpError> {
        let extents = self.extents(name)?;
        let found = <[usize; N]>::try_from(extents);
        found.map_err(|_| OpError(format!("attribute {name} must be {N} integers")))
    }

    /// Refuses other than these dtypes; None stands for any.
    pub fn dtypes<const N: usize>(
        &self,
        wanted: [Option<Dtype>; N],
    ) -> Result<[&'a Form; N], OpError> {
        let inputs: Vec<&Form> = self.inputs.iter().collect();
        match <[&Form; N]>::try_from(inputs) {
            Ok(forms)
                if forms
                    .iter()
                    .zip(wanted)
                    .all(|(f, want)| want.is_none_or(|w| w == f.dtype)) =>
            {
                Ok(forms)
            }
            _ => {
                let found: Vec<_> = self.inputs.iter().map(|form| form.dtype.name()).collect();
                let wanted = wanted.map(|dtype| dtype.map_or("int", Dtype::name));
                refuse!("inputs must be {wanted:?}, are {found:?}")
            }
        }
    }

    /// The window of the node's attributes on images [n, h, w, c], and n.
    pub fn window(&self, image: &[usize]) -> Result<(Window, usize), OpError> {
        let &[batch, height, width, channels] = image else {
            refuse!("needs an NHWC tensor, has shape {image:?}")
        };
        let kernel: [usize; 2] = self.exactly("kernel")?;
        let strides: [usize; 2] = self.exactly("strides")?;
        let pads: [usize; 4] = self.exactly("pads")?;
        if kernel.contains(&0) || strides.contains(&0) {
            refuse!("kernel and strides must be positive");
        }
        if (0..2).any(|axis| pads[axis] >= kernel[axis] || pads[axis + 2] >= kernel[axis]) {
            refuse!("a pad must be smaller than the kernel");
        }
        let windows = |axis: usize, extent: usize| -> Result<usize, OpError> {
            match (extent + pads[axis] + pads[axis + 2]).checked_sub(kernel[axis]) {
                Some(space) => Ok(space / strides[axis] + 1),
                None => refuse!("the window is larger than the padded image"),
            }
        };
        let window = Window {
            height,
            width,
            channels,
            rows: windows(0, height)?,
            columns: windows(1, width)?,
            kernel,
            strides,
            pads: [pads[0], pads[1]],
        };
        Ok((window, batch))
    }
}
