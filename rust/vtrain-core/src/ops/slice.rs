//! Borrowed tensors whose dtype is known only when a graph is read.

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

impl Slice<'_> {
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

    /// The little-endian row-major bytes.
    pub fn bytes(&self) -> &[u8] {
        fn of<T: Element>(x: &[T]) -> &[u8] {
            // SAFETY: an `Element` is a plain integer; any of its bytes is a u8.
            unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
        }
        each!(*self, x => of(x))
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
