//! Masks of dropout: twin of `vtrain/ops/dropout.py` and of `vtrain/spec/dropout.py`, which tells
//! what is drawn and why.

use super::simd::vectorised;
use crate::number::MAX_STEPS;
use crate::philox::{philox, philox_lanes};

/// Sites lie below this.
pub const MAX_SITES: u64 = 1 << 31;
const PER_BLOCK: u64 = 8;
const LANES: usize = 16;
const DOMAIN: u32 = 1 << 31;

/// Which elements a step keeps, and what stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// The seed of the task.
    pub seed: u64,
    /// The number of the mask in the graph, below [`MAX_SITES`].
    pub site: u32,
    /// How many of 2^16 draws keep an element.
    pub keep: u16,
    /// What stands for an element that is kept; 0 for one that is not.
    pub value: i16,
    /// The element of the node's mask with which this one begins: 0, but of a part of it that an
    /// engine draws by itself.
    pub first: u64,
}

impl Mask {
    fn counter(&self, t: i64, block: u64) -> [u32; 4] {
        let t = t.clamp(0, MAX_STEPS) as u64;
        let high = t >> 32 | block >> 32 << 16;
        [block as u32, DOMAIN | self.site, t as u32, high as u32]
    }

    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// Element `e` in step `t`: one outside [0, 2^40] counts as the nearest.
    pub fn at(&self, t: i64, e: u64) -> i16 {
        let e = self.first + e;
        let (block, half) = (e / PER_BLOCK, (e % PER_BLOCK) as usize);
        let word = philox(self.counter(t, block), self.key())[half / 2];
        self.of((word >> (16 * (half % 2))) as u16)
    }

    #[inline(always)]
    fn of(&self, draw: u16) -> i16 {
        if draw < self.keep { self.value } else { 0 }
    }

    /// Elements `first ..` in step `t`, as many as `out` holds.
    pub fn fill(&self, t: i64, first: u64, out: &mut [i16]) {
        const RUN: usize = LANES * PER_BLOCK as usize;
        let number = self.first + first;
        let before = (number.next_multiple_of(PER_BLOCK) - number).min(out.len() as u64);
        let (head, out) = out.split_at_mut(before as usize);
        for (e, out) in (first..).zip(head) {
            *out = self.at(t, e);
        }
        let begin = number + before;
        let (runs, rest) = out.as_chunks_mut::<RUN>();
        vectorised(
            #[inline(always)]
            || {
                for (block, out) in (begin / PER_BLOCK..).step_by(LANES).zip(&mut *runs) {
                    *out = self.run(t, block);
                }
            },
        );
        let begin = begin + (runs.len() * RUN) as u64;
        if !rest.is_empty() {
            let last = self.run(t, begin / PER_BLOCK);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// The elements of `LANES` blocks.
    #[inline(always)]
    fn run(&self, t: i64, block: u64) -> [i16; LANES * PER_BLOCK as usize] {
        let mut counters = [[0; LANES]; 4];
        for lane in 0..LANES {
            let counter = self.counter(t, block + lane as u64);
            for (words, word) in counters.iter_mut().zip(counter) {
                words[lane] = word;
            }
        }
        let words = philox_lanes(counters, self.key());
        let mut out = [0; LANES * PER_BLOCK as usize];
        for (lane, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            for (words, out) in words.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = [
                    self.of(words[lane] as u16),
                    self.of((words[lane] >> 16) as u16),
                ];
            }
        }
        out
    }
}
