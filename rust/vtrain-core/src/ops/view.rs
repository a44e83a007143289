//! Borrowed tensors whose dtype is known only when a graph is read.

use std::ops::Range;

use crate::number::{Dtype, Element};

/// The elements of a tensor.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// u8
    U8(&'a [u8]),
    /// i8
    I8(&'a [i8]),
    /// i16
    I16(&'a [i16]),
    /// i32
    I32(&'a [i32]),
    /// i64
    I64(&'a [i64]),
}

/// The elements of a tensor, to be written.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// u8
    U8(&'a mut [u8]),
    /// i8
    I8(&'a mut [i8]),
    /// i16
    I16(&'a mut [i16]),
    /// i32
    I32(&'a mut [i32]),
    /// i64
    I64(&'a mut [i64]),
}

/// Runs an expression on the typed elements of a [`Slice`].
macro_rules! each {
    ($slice:expr, $x:ident => $body:expr) => {
        match $slice {
            $crate::ops::Slice::U8($x) => $body,
            $crate::ops::Slice::I8($x) => $body,
            $crate::ops::Slice::I16($x) => $body,
            $crate::ops::Slice::I32($x) => $body,
            $crate::ops::Slice::I64($x) => $body,
        }
    };
}
pub(crate) use each;

impl<'a> Slice<'a> {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        fn of<T: Element>(_: &[T]) -> Dtype {
            T::DTYPE
        }
        each!(*self, x => of(x))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(*self, x => x.len())
    }

    /// Has it no element?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No elements.
    pub(crate) fn empty(dtype: Dtype) -> Self {
        match dtype {
            Dtype::U8 => Slice::U8(&[]),
            Dtype::I8 => Slice::I8(&[]),
            Dtype::I16 => Slice::I16(&[]),
            Dtype::I32 => Slice::I32(&[]),
            Dtype::I64 => Slice::I64(&[]),
        }
    }

    /// Some of the elements; none where there are fewer.
    pub(crate) fn part(&self, range: Range<usize>) -> Slice<'a> {
        each!(*self, x => x.get(range).unwrap_or(&[]).into())
    }

    /// The little-endian row-major bytes.
    pub fn bytes(&self) -> &[u8] {
        fn of<T: Element>(x: &[T]) -> &[u8] {
            // SAFETY: an `Element` is a plain integer; any of its bytes is a u8.
            unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
        }
        each!(*self, x => of(x))
    }
}

impl SliceMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(x) => x.len(),
            Self::I8(x) => x.len(),
            Self::I16(x) => x.len(),
            Self::I32(x) => x.len(),
            Self::I64(x) => x.len(),
        }
    }

    /// Has it no element?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same elements, for a while.
    pub(crate) fn reborrow(&mut self) -> SliceMut<'_> {
        match self {
            Self::U8(x) => SliceMut::U8(x),
            Self::I8(x) => SliceMut::I8(x),
            Self::I16(x) => SliceMut::I16(x),
            Self::I32(x) => SliceMut::I32(x),
            Self::I64(x) => SliceMut::I64(x),
        }
    }
}

impl<'a> SliceMut<'a> {
    /// Runs of `len` > 0 elements; the last may be shorter.
    pub(crate) fn chunks(self, len: usize) -> Vec<SliceMut<'a>> {
        match self {
            Self::U8(x) => x.chunks_mut(len).map(SliceMut::U8).collect(),
            Self::I8(x) => x.chunks_mut(len).map(SliceMut::I8).collect(),
            Self::I16(x) => x.chunks_mut(len).map(SliceMut::I16).collect(),
            Self::I32(x) => x.chunks_mut(len).map(SliceMut::I32).collect(),
            Self::I64(x) => x.chunks_mut(len).map(SliceMut::I64).collect(),
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian; this host would have to swap their bytes");

macro_rules! typed {
    ($($t:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$t]> for Slice<'a> {
            fn from(x: &'a [$t]) -> Self {
                Slice::$variant(x)
            }
        }

        impl<'a> TryFrom<Slice<'a>> for &'a [$t] {
            type Error = WrongDtype;

            fn try_from(slice: Slice<'a>) -> Result<Self, WrongDtype> {
                match slice {
                    Slice::$variant(x) => Ok(x),
                    _ => Err(WrongDtype),
                }
            }
        }

        impl<'a> TryFrom<SliceMut<'a>> for &'a mut [$t] {
            type Error = WrongDtype;

            fn try_from(slice: SliceMut<'a>) -> Result<Self, WrongDtype> {
                match slice {
                    SliceMut::$variant(x) => Ok(x),
                    _ => Err(WrongDtype),
                }
            }
        }
    )*};
}

/// The elements have another dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongDtype;

typed!(u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64);
