//! Memory for the elements of a tensor, aligned for vectors.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::view::{Slice, SliceMut};
use crate::number::{Dtype, Element};

const ALIGN: usize = 64;

/// The system has no memory left for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a tensor of {0} bytes")]
pub struct OutOfMemory(pub usize);

/// Zeroed bytes that can be read as elements of any dtype.
#[derive(Debug)]
pub struct Buffer {
    data: NonNull<u8>,
    layout: Option<Layout>,
}

// SAFETY: a buffer owns its memory, as a `Vec<u8>` does.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` only reads.
unsafe impl Sync for Buffer {}

impl Default for Buffer {
    /// A buffer of no bytes.
    fn default() -> Self {
        Self {
            data: NonNull::<u64>::dangling().cast(),
            layout: None,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `new` with this layout, and nobody else frees it.
            unsafe { dealloc(self.data.as_ptr(), layout) };
        }
    }
}

impl Buffer {
    /// `bytes` zero bytes. The system maps them when they are first written.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        if bytes == 0 {
            return Ok(Self::default());
        }
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| OutOfMemory(bytes))?;
        // SAFETY: the layout has a size.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory(bytes))?;
        Ok(Self {
            data,
            layout: Some(layout),
        })
    }

    /// Bytes that it holds.
    pub fn capacity(&self) -> usize {
        self.layout.map_or(0, |layout| layout.size())
    }

    /// The first byte. Who writes there must be the only one to read or write.
    pub(crate) fn base(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// The first `len` elements; fewer if it holds fewer.
    pub fn read<T: Element>(&self, len: usize) -> &[T] {
        let len = len.min(self.capacity() / size_of::<T>());
        // SAFETY: within the allocation, aligned for every dtype, and any bytes are integers.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), len) }
    }

    /// The first `len` elements; fewer if it holds fewer.
    pub fn write<T: Element>(&mut self, len: usize) -> &mut [T] {
        let len = len.min(self.capacity() / size_of::<T>());
        // SAFETY: as in `read`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast(), len) }
    }

    /// The first `len` elements as a dtype.
    pub fn slice(&self, dtype: Dtype, len: usize) -> Slice<'_> {
        match dtype {
            Dtype::U8 => Slice::U8(self.read(len)),
            Dtype::I8 => Slice::I8(self.read(len)),
            Dtype::I16 => Slice::I16(self.read(len)),
            Dtype::I32 => Slice::I32(self.read(len)),
            Dtype::I64 => Slice::I64(self.read(len)),
        }
    }

    /// The first `len` elements as a dtype, to be written.
    pub fn slice_mut(&mut self, dtype: Dtype, len: usize) -> SliceMut<'_> {
        match dtype {
            Dtype::U8 => SliceMut::U8(self.write(len)),
            Dtype::I8 => SliceMut::I8(self.write(len)),
            Dtype::I16 => SliceMut::I16(self.write(len)),
            Dtype::I32 => SliceMut::I32(self.write(len)),
            Dtype::I64 => SliceMut::I64(self.write(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_never_gives_more_than_it_holds() {
        let mut buffer = Buffer::new(20).unwrap();
        assert_eq!(buffer.read::<i64>(100), [0, 0]);
        buffer.write::<i32>(5).copy_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(buffer.read::<i32>(3), [1, 2, 3]);
        assert_eq!(Buffer::default().read::<i64>(1), []);
        assert!(Buffer::new(usize::MAX).is_err());
    }
}
