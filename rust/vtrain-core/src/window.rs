//! Sliding windows over NHWC images, and patches: what windows see, row by row.
//!
//! Patches are made of *bands*: some rows of windows of an image, with all pixels that they reach,
//! zeros where these lie outside. In a band every window is whole, so that its rows are runs of as
//! many elements, and the next window across lies a fixed step further.

use std::ops::Range;

/// Elements of a band: they should stay in a core's first caches.
const BAND: usize = 12 << 10;
/// Elements behind a band, so that it may be read by pairs.
const BEHIND: usize = 1;
/// Most elements that a row of windows may reach to be worked on in bands.
const LARGEST: usize = 1 << 22;

/// A sliding window over images of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Extents of an image.
    pub height: usize,
    /// See `height`.
    pub width: usize,
    /// See `height`.
    pub channels: usize,
    /// Windows down an image.
    pub rows: usize,
    /// Windows across an image.
    pub columns: usize,
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Steps down and across.
    pub strides: [usize; 2],
    /// Padding above and left.
    pub pads: [usize; 2],
}

impl Window {
    /// Elements of an image.
    pub fn image(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Elements of one window's patch.
    pub fn patch(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.channels
    }

    /// Windows of an image.
    pub fn windows(&self) -> usize {
        self.rows * self.columns
    }

    /// The part of window `at` along an axis that lies inside the image.
    #[inline(always)]
    fn inside(at: usize, stride: usize, pad: usize, kernel: usize, extent: usize) -> Range<usize> {
        let start = at * stride;
        let first = pad.saturating_sub(start).min(kernel);
        let end = (extent + pad).saturating_sub(start).min(kernel);
        first..end.max(first)
    }

    /// Offsets down the window at row `row` that lie inside the image.
    #[inline(always)]
    pub fn inside_down(&self, row: usize) -> Range<usize> {
        Self::inside(
            row,
            self.strides[0],
            self.pads[0],
            self.kernel[0],
            self.height,
        )
    }

    /// Offsets across the window at column `column` that lie inside the image.
    #[inline(always)]
    pub fn inside_across(&self, column: usize) -> Range<usize> {
        Self::inside(
            column,
            self.strides[1],
            self.pads[1],
            self.kernel[1],
            self.width,
        )
    }

    /// First element in an image of offset (`down`, `across`), inside it, of a window.
    #[inline(always)]
    pub fn pixel(&self, row: usize, column: usize, down: usize, across: usize) -> usize {
        let y = row * self.strides[0] + down - self.pads[0];
        let x = column * self.strides[1] + across - self.pads[1];
        (y * self.width + x) * self.channels
    }
}

/// Bands of some images, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bands<'a> {
    window: &'a Window,
    images: usize,
    per_image: usize,
}

impl<'a> Bands<'a> {
    /// Of about so many windows at most, but of a row at least. No extent of the window is 0.
    pub fn new(window: &'a Window, images: usize, windows: usize) -> Self {
        let fitting = (BAND / window.band_row()).saturating_sub(window.kernel[0]);
        let most = (fitting / window.strides[0] + 1).min(windows / window.columns);
        let per_image = window.rows.div_ceil(most.max(1));
        Self {
            window,
            images,
            per_image,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.images * self.per_image
    }

    /// The image of a band, and its rows of windows.
    pub fn get(&self, band: usize) -> (usize, Range<usize>) {
        let (image, part) = (band / self.per_image, band % self.per_image);
        let start = |part: usize| self.window.rows * part / self.per_image;
        (image, start(part)..start(part + 1))
    }
}

impl Window {
    /// May it be worked on in bands?
    pub(crate) fn has_bands(&self) -> bool {
        let row = self.image().min(self.windows()).min(self.patch());
        row > 0 && self.kernel[0].saturating_mul(self.band_row()) <= LARGEST
    }

    /// Elements of a row of pixels of a band.
    pub(crate) fn band_row(&self) -> usize {
        ((self.columns - 1) * self.strides[1] + self.kernel[1]) * self.channels
    }

    /// Elements from a window of a band to the one below it.
    pub(crate) fn band_step(&self) -> usize {
        self.strides[0] * self.band_row()
    }

    /// Makes the band of these rows of windows; there is a row, and no extent of the window is 0.
    pub(crate) fn fill_band(&self, image: &[i16], rows: Range<usize>, band: &mut Vec<i16>) {
        let (row, across) = (self.band_row(), self.width * self.channels);
        let height = (rows.len() - 1) * self.strides[0] + self.kernel[0];
        let left = self.pads[1] * self.channels;
        let length = across.min(row - left);
        band.clear();
        band.resize(height * row + BEHIND, 0);
        let first = rows.start * self.strides[0];
        for (y, to) in (first..first + height).zip(band.chunks_exact_mut(row)) {
            if let Some(y) = y.checked_sub(self.pads[0]).filter(|&y| y < self.height) {
                let from = &image[y * across..][..length];
                to[left..left + length].copy_from_slice(from);
            }
        }
    }

    /// The patches of a band's windows, row by row.
    pub(crate) fn copy_patches(&self, band: &[i16], out: &mut [i16]) {
        let (row, run) = (self.band_row(), self.kernel[1] * self.channels);
        let mut to = 0;
        let rows = out.len() / (self.columns * self.patch());
        for window_row in 0..rows {
            for column in 0..self.columns {
                let window =
                    window_row * self.band_step() + column * self.strides[1] * self.channels;
                for down in 0..self.kernel[0] {
                    let from = window + down * row;
                    out[to..to + run].copy_from_slice(&band[from..from + run]);
                    to += run;
                }
            }
        }
    }
}
