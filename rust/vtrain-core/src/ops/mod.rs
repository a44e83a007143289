//! Every operator of the step graph: twin of `vtrain/ops`, bit for bit, for every input.
//!
//! One pure function an operator, slices in, slice out, in one file a family. [`Kernel`] is a node
//! made ready: operator and attributes checked against the types of its inputs, so that running it
//! can neither panic nor read outside a tensor. Nothing here knows of engines or of Python.
//! Integer arithmetic is modulo 2^64 where the law's range proofs say that it never comes to that.

pub mod activation;
mod apply;
pub mod arithmetic;
pub mod attention;
mod bands;
mod buffer;
pub mod commitment;
pub mod dropout;
pub mod gather;
mod kernel;
pub mod layout;
pub mod linear;
pub mod lookup;
pub mod norm;
pub mod optimizer;
mod parallel;
pub mod parts;
pub mod pool;
pub mod rescale;
mod signature;
pub(crate) mod simd;
pub mod softmax;
pub mod source;
mod view;

pub use apply::{ApplyError, Input, apply_node};
pub(crate) use bands::Bands;
pub use buffer::{Buffer, OutOfMemory};
pub(crate) use kernel::copy;
pub use kernel::{Kernel, RunError, Samples};
pub(crate) use parallel::for_rows;
pub use signature::{Form, OpError, Part};
pub use source::Windows;
pub use view::{Slice, SliceMut, WrongDtype};
