//! Pooling over windows of whole NHWC images: twin of `vtrain/ops/pool.py`.
//!
//! Channels are taken eight at a time, which stay in registers over a window.

use super::simd::vectorised;
use crate::number::Element;
use crate::window::Window;

/// What padding counts as in a maximum: below every saturated operand.
const BELOW: i16 = i16::MIN;

/// One window, and eight channels of it or one.
struct Spot<'a> {
    window: &'a Window,
    /// First element of the image.
    image: usize,
    row: usize,
    column: usize,
    channel: usize,
}

impl Spot<'_> {
    /// Visits the pixels inside the image, row by row, by their first element.
    #[inline(always)]
    fn for_pixels(&self, mut visit: impl FnMut(usize)) {
        let across = self.window.inside_across(self.column);
        for down in self.window.inside_down(self.row) {
            let start = self.image + self.channel;
            let mut at = start + self.window.pixel(self.row, self.column, down, across.start);
            for _ in across.clone() {
                visit(at);
                at += self.window.channels;
            }
        }
    }

    /// Is the first element of the window padding?
    #[inline(always)]
    fn starts_outside(&self) -> bool {
        let (down, across) = (
            self.window.inside_down(self.row),
            self.window.inside_across(self.column),
        );
        down.start > 0 || across.start > 0
    }
}

/// What is done at a spot, given the first of its `N` channels in the pooled tensor.
trait Visit {
    fn visit<const N: usize>(&mut self, spot: &Spot<'_>, at: usize);
}

#[inline(always)]
fn for_spots(window: &Window, images: usize, visit: &mut impl Visit) {
    let mut at = 0;
    for image in 0..images {
        for row in 0..window.rows {
            for column in 0..window.columns {
                let image = image * window.image();
                let spot = |channel| Spot {
                    window,
                    image,
                    row,
                    column,
                    channel,
                };
                let whole = window.channels / 8 * 8;
                for channel in (0..whole).step_by(8) {
                    visit.visit::<8>(&spot(channel), at + channel);
                }
                for channel in whole..window.channels {
                    visit.visit::<1>(&spot(channel), at + channel);
                }
                at += window.channels;
            }
        }
    }
}

#[inline(always)]
fn lanes<T: Copy + Default, const N: usize>(x: &[T], at: usize) -> [T; N] {
    x.get(at..)
        .and_then(|x| x.first_chunk())
        .copied()
        .unwrap_or([T::default(); N])
}

#[inline(always)]
fn put<T: Copy, const N: usize>(out: &mut [T], at: usize, lanes: [T; N]) {
    if let Some(out) = out.get_mut(at..).and_then(|out| out.first_chunk_mut()) {
        *out = lanes;
    }
}

#[inline(always)]
fn add<const N: usize>(out: &mut [i64], at: usize, x: [i64; N]) {
    let sum: [i64; N] = lanes(out, at);
    put(
        out,
        at,
        std::array::from_fn::<_, N, _>(|i| sum[i].wrapping_add(x[i])),
    );
}

/// The largest element of each lane; padding never wins.
#[inline(always)]
fn maximum<const N: usize>(spot: &Spot<'_>, x: &[i16]) -> [i16; N] {
    let mut best = [BELOW; N];
    spot.for_pixels(|at| {
        for (best, x) in best.iter_mut().zip(lanes::<i16, N>(x, at)) {
            *best = x.max(*best);
        }
    });
    best
}

/// The maximum over each window; padding never wins.
pub fn max_pool(window: &Window, x: &[i16], out: &mut [i16]) {
    struct Max<'a>(&'a [i16], &'a mut [i16]);
    impl Visit for Max<'_> {
        #[inline(always)]
        fn visit<const N: usize>(&mut self, spot: &Spot<'_>, at: usize) {
            // Kept in the output: as a local array it would be taken apart into scalars.
            spot.for_pixels(|from| {
                let (x, best): ([i16; N], [i16; N]) = (lanes(self.0, from), lanes(self.1, at));
                put(
                    self.1,
                    at,
                    std::array::from_fn::<_, N, _>(|i| best[i].max(x[i])),
                );
            });
        }
    }
    out.fill(BELOW);
    let images = out.len() / (window.windows() * window.channels).max(1);
    vectorised(
        #[inline(always)]
        move || for_spots(window, images, &mut Max(x, out)),
    );
}

/// Each window's gradient goes to its first maximum in row-major order; overlaps add.
///
/// Where a window's maximum is no more than the padding's value, the first element has it, and a
/// gradient that goes to padding is lost.
pub fn max_pool_grad(window: &Window, grad: &[i16], x: &[i16], out: &mut [i64]) {
    struct Route<'a>(&'a [i16], &'a [i16], &'a mut [i64]);
    impl Visit for Route<'_> {
        #[inline(always)]
        fn visit<const N: usize>(&mut self, spot: &Spot<'_>, at: usize) {
            let best = maximum::<N>(spot, self.1);
            // What is still to go to the first element that has the maximum.
            let mut left: [i16; N] = lanes(self.0, at);
            if spot.starts_outside() {
                left = std::array::from_fn(|i| if best[i] == BELOW { 0 } else { left[i] });
            }
            spot.for_pixels(|at| {
                let x: [i16; N] = lanes(self.1, at);
                let given = std::array::from_fn(|i| if x[i] == best[i] { left[i] } else { 0 });
                left = std::array::from_fn(|i| if x[i] == best[i] { 0 } else { left[i] });
                add(self.2, at, given.map(i64::from) as [i64; N]);
            });
        }
    }
    out.fill(0);
    let images = out.len() / window.image().max(1);
    vectorised(
        #[inline(always)]
        move || for_spots(window, images, &mut Route(grad, x, out)),
    );
}

/// The int64 sum over each window; padding counts as zero.
pub fn sum_pool(window: &Window, x: &[i16], out: &mut [i64]) {
    struct Sum<'a>(&'a [i16], &'a mut [i64]);
    impl Visit for Sum<'_> {
        #[inline(always)]
        fn visit<const N: usize>(&mut self, spot: &Spot<'_>, at: usize) {
            let mut sum = [0i64; N];
            spot.for_pixels(|at| {
                let x: [i16; N] = lanes(self.0, at);
                sum = std::array::from_fn(|i| sum[i] + i64::from(x[i]));
            });
            put(self.1, at, sum);
        }
    }
    let images = out.len() / (window.windows() * window.channels).max(1);
    vectorised(
        #[inline(always)]
        move || for_spots(window, images, &mut Sum(x, out)),
    );
}

/// Adjoint of `sum_pool`: each pixel gets the int64 sum of its windows' gradients.
pub fn sum_pool_grad<T: Element>(window: &Window, grad: &[T], out: &mut [i64]) {
    struct Spread<'a, T>(&'a [T], &'a mut [i64]);
    impl<T: Element> Visit for Spread<'_, T> {
        #[inline(always)]
        fn visit<const N: usize>(&mut self, spot: &Spot<'_>, at: usize) {
            let grad = (lanes(self.0, at) as [T; N]).map(T::wide);
            spot.for_pixels(|at| add(self.1, at, grad));
        }
    }
    out.fill(0);
    let images = out.len() / window.image().max(1);
    vectorised(
        #[inline(always)]
        move || for_spots(window, images, &mut Spread(grad, out)),
    );
}
