//! Pointwise non-linearities on int16 operands: twin of `vtrain/ops/activation.py`.

use super::simd::vectorised;

/// `out = max(x, 0)`.
pub fn relu(x: &[i16], out: &mut [i16]) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x.max(0);
            }
        },
    );
}

/// Zeroes the gradient where the forward output is not positive.
pub fn relu_grad(grad: &mut [i16], output: &[i16]) {
    vectorised(
        #[inline(always)]
        move || {
            for (grad, &output) in grad.iter_mut().zip(output) {
                *grad = if output > 0 { *grad } else { 0 };
            }
        },
    );
}
