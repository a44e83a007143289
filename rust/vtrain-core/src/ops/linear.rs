//! Matrix products and their companions: twin of `vtrain/ops/linear.py`.

use rayon::prelude::*;

use super::layout::add_to;
use super::simd::vectorised;
use crate::gemm::{Epilogue, Gemm, GemmError, MAX_K, MatRef, Patches, StoreI64};
use crate::number::{Element, Rounding};
use crate::window::Window;

/// Extents of a product [m, k] x [k, n] and how its operands are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of the result.
    pub m: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// A is stored as [k, m].
    pub transpose_a: bool,
    /// B is stored as [n, k].
    pub transpose_b: bool,
}

impl Product {
    /// The operands as the matrices that are multiplied.
    pub fn operands<'a>(
        &self,
        a: &'a [i16],
        b: &'a [i16],
    ) -> Result<(MatRef<'a>, MatRef<'a>), GemmError> {
        Ok((self.left(a)?, self.right(b)?))
    }

    fn left<'a>(&self, a: &'a [i16]) -> Result<MatRef<'a>, GemmError> {
        if self.transpose_a {
            Ok(MatRef::row_major(a, self.k, self.m)?.t())
        } else {
            MatRef::row_major(a, self.m, self.k)
        }
    }

    fn right<'a>(&self, b: &'a [i16]) -> Result<MatRef<'a>, GemmError> {
        if self.transpose_b {
            Ok(MatRef::row_major(b, self.n, self.k)?.t())
        } else {
            MatRef::row_major(b, self.k, self.n)
        }
    }
}

/// What a product is made of.
#[derive(Clone, Copy, Debug)]
pub enum Factors {
    /// Two matrices.
    Matrices(Product),
    /// A matrix and patches of images, of which only the images are stored.
    Patches {
        /// Of the matrices that are multiplied.
        product: Product,
        /// Of the patches.
        window: Window,
        /// Which of the factors they are.
        role: Role,
    },
}

/// What images are to a product that reads their patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The left factor: their patches times a kernel.
    Images,
    /// The left factor: patches of gradients times a kernel [outputs, elements of an image's patch],
    /// which is turned first. It is the adjoint of a convolution with steps of 1: the same terms as
    /// those of a product whose patches are added to their pixels.
    Gradients,
    /// The right factor: gradients times their patches.
    Samples,
}

/// Most sums that each thread has of its own where their terms are shared out.
const MOST_SUMS: usize = 1 << 16;

impl Factors {
    /// Extents of the matrices.
    pub fn product(&self) -> Product {
        match *self {
            Self::Matrices(product) | Self::Patches { product, .. } => product,
        }
    }

    /// Those of `product`, whose factor `input` is patches of this window, without these. None: the
    /// product is better off with stored ones.
    pub fn of_images(product: Product, input: usize, window: Window) -> Option<Self> {
        let Product { m, k, n, .. } = product;
        let (fits, role) = match input {
            0 => (!product.transpose_a && k == window.patch(), Role::Images),
            _ => {
                let is_small = m.saturating_mul(n) <= MOST_SUMS;
                let fits = !product.transpose_b && n == window.patch();
                (fits && is_small, Role::Samples)
            }
        };
        (fits && window.has_bands()).then_some(Self::Patches {
            product,
            window,
            role,
        })
    }

    /// Those of the sums over the patches of `window` that `product` puts out, pixel by pixel. None:
    /// there is no such product.
    pub fn of_gradients(product: Product, window: &Window) -> Option<Self> {
        let outputs = product.k;
        let fits = window.strides == [1, 1]
            && !product.transpose_a
            && !product.transpose_b
            && product.n == window.patch()
            && product.n > 0
            && window.windows() > 0
            && product.m.is_multiple_of(window.windows());
        let pad = |axis: usize| window.kernel[axis] - 1 - window.pads[axis];
        let turned = Window {
            height: window.rows,
            width: window.columns,
            channels: outputs,
            rows: window.height,
            columns: window.width,
            kernel: window.kernel,
            strides: [1, 1],
            pads: [pad(0), pad(1)],
        };
        let images = product.m.checked_div(window.windows())?;
        let product = Product {
            m: images * window.height * window.width,
            k: turned.patch(),
            n: window.channels,
            transpose_a: false,
            transpose_b: false,
        };
        (fits && turned.has_bands() && product.k <= MAX_K).then_some(Self::Patches {
            product,
            window: turned,
            role: Role::Gradients,
        })
    }

    /// Hands every accumulator to `epilogue`.
    pub fn multiply<E: Epilogue>(
        &self,
        gemm: &mut Gemm,
        (a, b): (&[i16], &[i16]),
        epilogue: &E,
    ) -> Result<(), GemmError> {
        match self {
            Self::Matrices(product) => {
                let (a, b) = product.operands(a, b)?;
                gemm.run(a, b, epilogue)
            }
            Self::Patches {
                product,
                window,
                role: Role::Images,
            } => gemm.run_on_patches(Patches::new(a, window)?, product.right(b)?, epilogue),
            Self::Patches {
                product,
                window,
                role: Role::Gradients,
            } => {
                let turned = turn(b, window, product.n);
                let b = MatRef::row_major(&turned, product.n, product.k)?.t();
                gemm.run_on_patches(Patches::new(a, window)?, b, epilogue)
            }
            Self::Patches {
                product,
                window,
                role: Role::Samples,
            } => gemm.run_over_patches(product.left(a)?, Patches::new(b, window)?, epilogue),
        }
    }
}

/// A kernel [outputs, height, width, channels] as [channels, height, width, outputs], height and width
/// the other way round; `window` sees gradients, whose channels are the outputs.
fn turn(kernel: &[i16], window: &Window, channels: usize) -> Vec<i16> {
    let (outputs, area) = (window.channels, window.kernel[0] * window.kernel[1]);
    let mut turned = Vec::with_capacity(kernel.len());
    for channel in 0..channels {
        for at in (0..area).rev() {
            let places = (0..outputs).map(|output| (output * area + at) * channels + channel);
            turned.extend(places.map(|place| kernel[place]));
        }
    }
    turned
}

/// Exact int64 sums of the products of two int16 matrices.
pub fn matmul(
    gemm: &mut Gemm,
    factors: &Factors,
    a: &[i16],
    b: &[i16],
    out: &mut [i64],
) -> Result<(), GemmError> {
    let Product { m, n, .. } = factors.product();
    factors.multiply(gemm, (a, b), &StoreI64::new(out, m, n)?)
}

/// Multiplications of a product below which one thread does it alone.
const SMALL: usize = 1 << 22;

/// The products of `stack` pairs of matrices, one after the other in `a`, `b` and `out`.
///
/// Small ones are spread over the threads, each done by one; a large one is spread by itself.
/// `multiply` makes the output of one product; what it returns is added up.
pub fn stacked<T: Send>(
    gemm: &mut Gemm,
    product: Product,
    stack: usize,
    (a, b): (&[i16], &[i16]),
    out: &mut [T],
    multiply: impl Fn(&mut Gemm, (&[i16], &[i16]), &mut [T]) -> Result<u64, GemmError> + Sync,
) -> Result<u64, GemmError> {
    let Product { m, k, n, .. } = product;
    if stack == 0 || m == 0 || n == 0 {
        return Ok(0);
    }
    let one = |gemm: &mut Gemm, i: usize, out: &mut [T]| {
        let operands = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
        multiply(gemm, operands, out)
    };
    let threads = rayon::current_num_threads().min(stack);
    let multiplications = m.saturating_mul(k).saturating_mul(n);
    if threads > 1 && multiplications <= SMALL && multiplications * stack >= SMALL / 64 {
        let per = stack.div_ceil(threads * 4);
        return out
            .par_chunks_mut(per * m * n)
            .enumerate()
            .map(|(chunk, out)| {
                let mut gemm = Gemm::alone(gemm.path())?;
                let mut sum = 0;
                for (i, out) in (chunk * per..).zip(out.chunks_exact_mut(m * n)) {
                    sum += one(&mut gemm, i, out)?;
                }
                Ok(sum)
            })
            .try_reduce(|| 0, |a, b| Ok(a + b));
    }
    let mut sum = 0;
    for (i, out) in out.chunks_exact_mut(m * n).enumerate() {
        sum += one(gemm, i, out)?;
    }
    Ok(sum)
}

/// Exact int64 sums of the products of a stack of int16 matrices.
pub fn batched_matmul(
    gemm: &mut Gemm,
    product: Product,
    stack: usize,
    a: &[i16],
    b: &[i16],
    out: &mut [i64],
) -> Result<(), GemmError> {
    let one = Factors::Matrices(product);
    stacked(gemm, product, stack, (a, b), out, |gemm, (a, b), out| {
        matmul(gemm, &one, a, b, out)?;
        Ok(0)
    })?;
    Ok(())
}

/// The bias at the exponent of the accumulator.
pub fn align_bias(bias: &[i32], shift: Rounding) -> Vec<i64> {
    bias.iter().map(|&b| shift.apply(b.into())).collect()
}

/// Adds the bias to each row of `acc`.
pub fn add_bias(acc: &mut [i64], bias: &[i32], shift: Rounding) {
    if bias.is_empty() {
        return;
    }
    let aligned = align_bias(bias, shift);
    vectorised(
        #[inline(always)]
        move || {
            for row in acc.chunks_exact_mut(aligned.len()) {
                for (acc, &b) in row.iter_mut().zip(&aligned) {
                    *acc = acc.wrapping_add(b);
                }
            }
        },
    );
}

/// Adds the rows of `x`, each as long as `out`, to `out`. Rows may be long (features) or short
/// (channels), for which the better loops differ by a factor of six.
pub fn column_sum<T: Element>(x: &[T], out: &mut [i64]) {
    if out.is_empty() {
        return;
    }
    vectorised(
        #[inline(always)]
        move || {
            for row in x.chunks_exact(out.len()) {
                if out.len() < 64 {
                    add_to(out, row);
                } else {
                    for (out, &x) in out.iter_mut().zip(row) {
                        *out = out.wrapping_add(x.wide());
                    }
                }
            }
        },
    );
}
