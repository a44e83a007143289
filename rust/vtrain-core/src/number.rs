//! The number format: element types, rounding shift, saturation. Twin of `vtrain/spec/number.py`.

use crate::tables::{EXP2, LOG2};

/// Fraction bits of probabilities: 1.0 as int16.
pub const PROBABILITY_ONE: i64 = 1 << PROBABILITY_EXPONENT;
/// Fraction bits of probabilities.
pub const PROBABILITY_EXPONENT: u32 = 14;
/// Fraction bits of logits in the base-2 log domain.
pub const LOG2_EXPONENT: u32 = 10;
/// Fraction bits of 2^-d in the softmax.
pub const EXP2_EXPONENT: u32 = 16;
/// Fraction bits of the loss.
pub const LOSS_EXPONENT: u32 = 16;
/// The longest run: the step counter stays there.
pub const MAX_STEPS: i64 = 1 << 40;

/// An element type; tensors are stored little-endian and row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits: operands.
    I16,
    /// Signed, 32 bits: master weights and momentum.
    I32,
    /// Signed, 64 bits: accumulators.
    I64,
}

impl Dtype {
    /// Every dtype, narrowest first.
    pub const ALL: [Self; 5] = [Self::U8, Self::I8, Self::I16, Self::I32, Self::I64];

    /// Is `x` one of its values?
    pub fn holds(self, x: i64) -> bool {
        match self {
            Self::U8 => u8::try_from(x).is_ok(),
            Self::I8 => i8::try_from(x).is_ok(),
            Self::I16 => i16::try_from(x).is_ok(),
            Self::I32 => i32::try_from(x).is_ok(),
            Self::I64 => true,
        }
    }

    /// The name in a graph.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// The dtype of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// An integer that a tensor can hold.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: Dtype;

    /// As int64, exactly.
    fn wide(self) -> i64;
}

/// An integer to which accumulators are narrowed, with the bounds of the number format.
pub trait Narrow: Element {
    /// Least and greatest value after saturation.
    const BOUNDS: (i64, i64);

    /// The low bits of `x`.
    fn truncate(x: i64) -> Self;
}

macro_rules! elements {
    ($($t:ty => $dtype:ident),*) => {$(
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;

            #[inline(always)]
            #[allow(clippy::useless_conversion)] // i64 to i64
            fn wide(self) -> i64 {
                i64::from(self)
            }
        }
    )*};
}

macro_rules! narrows {
    ($($t:ty => $lo:expr, $hi:expr);*) => {$(
        impl Narrow for $t {
            const BOUNDS: (i64, i64) = ($lo, $hi);

            #[inline(always)]
            fn truncate(x: i64) -> Self {
                x as $t
            }
        }
    )*};
}

elements!(u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64);
narrows!(i16 => -32639, 32639; i32 => -(i32::MAX as i64), i32::MAX as i64; i64 => i64::MIN, i64::MAX);

/// Clamps to the bounds of the number format.
#[inline(always)]
pub fn saturate<T: Narrow>(x: i64) -> T {
    T::truncate(x.clamp(T::BOUNDS.0, T::BOUNDS.1))
}

/// [`saturate`], which adds 1 to `clamped` if that changes `x`; without a branch.
#[inline(always)]
pub fn saturate_counted<T: Narrow>(x: i64, clamped: &mut u64) -> T {
    let held = x.clamp(T::BOUNDS.0, T::BOUNDS.1);
    *clamped += u64::from(held != x);
    T::truncate(held)
}

/// The rounding shift `rs(x, s) = floor((x + 2^(s-1)) / 2^s)`, for s <= 0 `x * 2^-s` modulo 2^64.
///
/// Free of branches, so that loops over elements vectorise for every shift alike: one left shift,
/// then `floor(y / 2^r) + bit r-1 of y`, which is the rounded quotient and cannot overflow.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    left: u32,
    right: u32,
    before: u32,
    half: i64,
    keep: i64,
}

impl Rounding {
    /// For a shift that may have any value.
    pub fn new(shift: i64) -> Self {
        let none = Self {
            left: 0,
            right: 0,
            before: 0,
            half: 0,
            keep: -1,
        };
        match shift {
            // Every int64 is within half a unit of zero, and -2^63 / 2^64 rounds up to it.
            64.. => Self { keep: 0, ..none },
            1..=63 => Self {
                right: shift as u32,
                before: shift as u32 - 1,
                half: 1,
                ..none
            },
            -63..=0 => Self {
                left: shift.unsigned_abs() as u32,
                ..none
            },
            _ => Self { keep: 0, ..none },
        }
    }

    /// rs(x, shift).
    #[inline(always)]
    pub fn apply(self, x: i64) -> i64 {
        let y = x << self.left;
        ((y >> self.right) + ((y >> self.before) & self.half)) & self.keep
    }
}

/// The rounding shift of values for which `x + 2^(s-1)` cannot overflow: two instructions.
#[derive(Clone, Copy, Debug)]
pub struct SmallRounding {
    half: i64,
    shift: u32,
}

impl SmallRounding {
    /// For shifts in [0, 62] of values within +-2^62; None for others.
    pub fn new(shift: i64) -> Option<Self> {
        match shift {
            0 => Some(Self { half: 0, shift: 0 }),
            1..=62 => Some(Self {
                half: 1 << (shift - 1),
                shift: shift as u32,
            }),
            _ => None,
        }
    }

    /// rs(x, shift).
    #[inline(always)]
    pub fn apply(self, x: i64) -> i64 {
        x.wrapping_add(self.half) >> self.shift
    }
}

/// 2^-d in 16 fraction bits, `d` >= 0 in 10 fraction bits: rs(T\[d & 1023\], d >> 10).
#[inline(always)]
pub fn exp2_q16(d: i64) -> i32 {
    let mantissa = EXP2[(d & 1023) as usize];
    let whole = (d >> LOG2_EXPONENT).clamp(0, 31) as u32;
    let half = if whole > 0 {
        mantissa >> (whole - 1) & 1
    } else {
        0
    };
    ((mantissa >> whole) + half) as i32
}

/// Base-2 logarithm in 16 fraction bits of `x` > 0, by the table of 1024 mantissas.
pub fn log2_q16(x: i64) -> i64 {
    let n = x.max(1).ilog2();
    let index = if n >= 10 {
        x >> (n - 10)
    } else {
        x << (10 - n)
    } & 1023;
    (i64::from(n) << LOSS_EXPONENT) + i64::from(LOG2[index as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in integers that cannot overflow.
    fn rs(x: i64, shift: i64) -> i128 {
        let x = i128::from(x);
        if shift <= 0 {
            x << -shift
        } else {
            (x + (1 << (shift - 1))) >> shift
        }
    }

    #[test]
    fn rounding_is_its_definition() {
        let edges = [
            0,
            1,
            2,
            3,
            5,
            255,
            256,
            1 << 31,
            1 << 61,
            i64::MAX - 1,
            i64::MAX,
        ];
        for shift in -62..=70 {
            for x in edges.into_iter().flat_map(|x| [x, -x, !x]) {
                let expected = rs(x, shift) as i64;
                assert_eq!(Rounding::new(shift).apply(x), expected, "rs({x}, {shift})");
            }
        }
    }

    #[test]
    fn small_rounding_is_rounding() {
        for shift in 0..=62 {
            let (small, any) = (SmallRounding::new(shift).unwrap(), Rounding::new(shift));
            for x in [0, 1, 2, 3, 5, 255, 256, 1 << 31, (1 << 62) - 1, 1 << 62] {
                assert_eq!(small.apply(x), any.apply(x));
                assert_eq!(small.apply(-x), any.apply(-x));
            }
        }
        assert!(SmallRounding::new(-1).is_none() && SmallRounding::new(63).is_none());
    }

    #[test]
    fn saturation_has_the_bounds_of_the_format() {
        assert_eq!(saturate::<i16>(32640), 32639);
        assert_eq!(saturate::<i16>(-32640), -32639);
        assert_eq!(saturate::<i32>(i64::MIN), -i32::MAX);
        assert_eq!(saturate::<i64>(i64::MIN), i64::MIN);
    }

    #[test]
    fn powers_and_logarithms_agree_on_powers_of_two() {
        for n in 0..17 {
            assert_eq!(exp2_q16(n << 10), if n < 17 { (1 << 16) >> n } else { 0 });
        }
        assert_eq!(exp2_q16(17 << 10), 1); // half a unit rounds up
        assert_eq!(exp2_q16(18 << 10), 0);
        for n in 0..62 {
            let tiny = i64::from(LOG2[0]);
            assert_eq!(log2_q16(1 << n), (n << 16) + tiny);
        }
    }
}
