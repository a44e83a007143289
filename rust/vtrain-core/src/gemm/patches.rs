//! Patches of images as an operand that is stored nowhere.

use super::GemmError;
use crate::window::{Bands, Window};

/// Patches of images as a matrix: a row for each window, zero outside the image.
#[derive(Debug, Clone, Copy)]
pub struct Patches<'a> {
    data: &'a [i16],
    pub(super) window: &'a Window,
    pub(super) images: usize,
}

impl<'a> Patches<'a> {
    /// Of all images in `data`, one after the other. Errors: [`GemmError::View`].
    pub fn new(data: &'a [i16], window: &'a Window) -> Result<Self, GemmError> {
        let image = window.image();
        if !window.has_bands() || !data.len().is_multiple_of(image) {
            return Err(GemmError::View {
                rows: window.windows(),
                cols: window.patch(),
                row_stride: window.patch(),
                col_stride: 1,
                len: data.len(),
            });
        }
        Ok(Self {
            data,
            window,
            images: data.len() / image,
        })
    }

    /// Number of rows: windows of all images.
    pub fn rows(&self) -> usize {
        self.images * self.window.windows()
    }

    /// Number of columns: elements of a patch.
    pub fn cols(&self) -> usize {
        self.window.patch()
    }

    /// The matrix as it would be stored, row-major.
    pub(super) fn store(&self) -> Vec<i16> {
        let mut all = Vec::with_capacity(self.rows() * self.cols());
        let bands = Bands::new(self.window, self.images, usize::MAX);
        let mut band = Vec::new();
        for i in 0..bands.count() {
            let (image, rows) = bands.get(i);
            let first = all.len();
            all.resize(first + rows.len() * self.window.columns * self.cols(), 0);
            self.window.fill_band(self.image(image), rows, &mut band);
            self.window.copy_patches(&band, &mut all[first..]);
        }
        all
    }

    pub(super) fn image(&self, image: usize) -> &'a [i16] {
        &self.data[image * self.window.image()..][..self.window.image()]
    }
}
