//! The random numbers of PyTorch's CPU generator, many at a time. PyTorch draws one after the other, which takes longer
//! than all kernels of a model's dropouts together; the same numbers come out of vectors here.
//!
//! The generator is MT19937 (Matsumoto and Nishimura, 1998). PyTorch gives out its state as bytes of a fixed layout
//! (`CPUGeneratorImpl::get_state` in ATen).

use crate::width::{Work, with_widest};

/// Words of the generator's state.
const WORDS: usize = 624;
/// How far apart the words are that a new one combines.
const SHIFT: usize = 397;
/// Words that are drawn before they are compared: they stay in the first-level cache.
const BATCH: usize = 2048;

/// Where the state's bytes hold what: the number of words left (counted with the one that ends a round), the
/// position of the next word, and the words as 64-bit numbers.
const LEFT: usize = 8;
const NEXT: usize = 16;
const STATE: usize = 24;

/// Bytes of a state as `torch.get_rng_state()` gives it.
pub const STATE_BYTES: usize = 5056;

/// PyTorch's generator.
#[derive(Clone)]
pub struct Generator {
    state: [u32; WORDS],
    /// Position of the next word; [`WORDS`] when a new round begins.
    next: usize,
}

impl Generator {
    /// The generator of a state from PyTorch; `None` if it isn't one.
    pub fn from_state(bytes: &[u8]) -> Option<Generator> {
        if bytes.len() != STATE_BYTES {
            return None;
        }
        let left = u32::from_le_bytes(bytes[LEFT..LEFT + 4].try_into().ok()?) as usize;
        let mut state = [0; WORDS];
        for (word, bytes) in state.iter_mut().zip(bytes[STATE..].chunks_exact(8)) {
            *word = u32::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()?;
        }
        // `left` is 1 where all words are used up, and in a new generator, whose position is 0.
        let next = (WORDS + 1).checked_sub(left)?;
        (next <= WORDS && next > 0).then_some(Generator { state, next })
    }

    /// Puts the generator into a state from PyTorch, whose other contents stay.
    pub fn store(&self, bytes: &mut [u8]) {
        let left = (WORDS + 1 - self.next) as u32;
        bytes[LEFT..LEFT + 4].copy_from_slice(&left.to_le_bytes());
        bytes[NEXT..NEXT + 8].copy_from_slice(&(self.next as u64).to_le_bytes());
        for (word, bytes) in self.state.iter().zip(bytes[STATE..].chunks_exact_mut(8)) {
            bytes.copy_from_slice(&u64::from(*word).to_le_bytes());
        }
    }

    /// Draws whether events of this probability happen, as `Tensor.bernoulli_(p)` does: two words for each.
    pub fn bernoulli(&mut self, probability: f64, events: &mut [u8]) {
        // A draw is a number of 53 bits, and happens below `probability · 2^53`.
        let threshold = (probability * (1_u64 << 53) as f64).ceil() as u64;
        with_widest(Draws { generator: self, threshold, events });
    }

    #[inline(always)]
    fn bernoulli_below(&mut self, threshold: u64, events: &mut [u8]) {
        let mut words = [0; BATCH];
        for events in events.chunks_mut(BATCH / 2) {
            let words = &mut words[..2 * events.len()];
            self.draw(words);
            for (event, pair) in events.iter_mut().zip(words.chunks_exact(2)) {
                let bits = u64::from(pair[0] & 0x1f_ffff) << 32 | u64::from(pair[1]);
                *event = u8::from(bits < threshold);
            }
        }
    }

    /// Draws words.
    #[inline(always)]
    fn draw(&mut self, mut words: &mut [u32]) {
        while !words.is_empty() {
            if self.next == WORDS {
                self.renew();
            }
            let count = words.len().min(WORDS - self.next);
            let (now, later) = words.split_at_mut(count);
            for (word, state) in now.iter_mut().zip(&self.state[self.next..]) {
                *word = tempered(*state);
            }
            self.next += count;
            words = later;
        }
    }

    /// Makes the words of the next round.
    #[inline(always)]
    fn renew(&mut self) {
        let old = self.state;
        let new = &mut self.state;
        for i in 0..WORDS - SHIFT {
            new[i] = old[i + SHIFT] ^ twisted(old[i], old[i + 1]);
        }
        let begin = new[0];
        // In two steps, so that none reads what it writes and both run in vectors.
        const REST: usize = WORDS - SHIFT;
        let (first, rest) = new.split_at_mut(REST);
        for i in 0..REST {
            rest[i] = first[i] ^ twisted(old[REST + i], old[REST + i + 1]);
        }
        let (first, rest) = rest.split_at_mut(REST);
        let last = rest.len() - 1;
        for i in 0..last {
            rest[i] = first[i] ^ twisted(old[2 * REST + i], old[2 * REST + i + 1]);
        }
        rest[last] = first[last] ^ twisted(old[WORDS - 1], begin);
        self.next = 0;
    }
}

/// Events to draw, below a threshold.
struct Draws<'a> {
    generator: &'a mut Generator,
    threshold: u64,
    events: &'a mut [u8],
}

impl Work for Draws<'_> {
    #[inline(always)]
    fn run(self) {
        self.generator.bernoulli_below(self.threshold, self.events);
    }
}

#[inline(always)]
fn twisted(high: u32, low: u32) -> u32 {
    let mixed = (high & 0x8000_0000) | (low & 0x7fff_ffff);
    (mixed >> 1) ^ (0x9908_b0df & (low & 1).wrapping_neg())
}

#[inline(always)]
fn tempered(mut word: u32) -> u32 {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c_5680;
    word ^= (word << 15) & 0xefc6_0000;
    word ^ (word >> 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of `torch.manual_seed(seed)`.
    fn seeded(seed: u32) -> Vec<u8> {
        let mut bytes = vec![0; STATE_BYTES];
        bytes[LEFT..LEFT + 4].copy_from_slice(&1_u32.to_le_bytes());
        let mut word = seed;
        for (i, bytes) in bytes[STATE..].chunks_exact_mut(8).take(WORDS).enumerate() {
            if i > 0 {
                word = (word ^ (word >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
            }
            bytes.copy_from_slice(&u64::from(word).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn words_are_those_of_mt19937() {
        // The standard's own check (C++, [rand.predef]): word 10,000 of the default seed.
        let mut generator = Generator::from_state(&seeded(5489)).unwrap();
        let mut words = vec![0; 10_000];
        generator.draw(&mut words);
        assert_eq!(words[9_999], 4_123_659_995);
    }

    #[test]
    fn draws_in_pieces_are_draws_in_one_go() {
        let mut whole = Generator::from_state(&seeded(7)).unwrap();
        let mut expected = vec![0; 5000];
        whole.bernoulli(0.3, &mut expected);
        let mut state = seeded(7);
        let mut events = Vec::new();
        for count in [0, 1, 311, 312, 313, 1, 1024, 1025, 2013] {
            let mut generator = Generator::from_state(&state).unwrap();
            let mut piece = vec![0; count];
            generator.bernoulli(0.3, &mut piece);
            generator.store(&mut state);
            events.extend(piece);
        }
        assert_eq!(events, expected);
        let mut end = seeded(7);
        whole.store(&mut end);
        assert_eq!(state, end);
    }

    #[test]
    fn vectors_of_any_width_draw_alike() {
        let (mut plain, mut vector) = (seeded(1), seeded(1));
        let (mut a, mut b) = (vec![0; 4000], vec![0; 4000]);
        let mut generator = Generator::from_state(&plain).unwrap();
        generator.bernoulli_below((0.9 * (1_u64 << 53) as f64).ceil() as u64, &mut a);
        generator.store(&mut plain);
        let mut generator = Generator::from_state(&vector).unwrap();
        generator.bernoulli(0.9, &mut b);
        generator.store(&mut vector);
        assert!(a == b && plain == vector);
    }

    #[test]
    fn certain_and_impossible_events_are_so() {
        let mut generator = Generator::from_state(&seeded(3)).unwrap();
        let mut events = vec![2; 700];
        generator.bernoulli(0.0, &mut events);
        assert!(events.iter().all(|e| *e == 0));
        generator.bernoulli(1.0, &mut events);
        assert!(events.iter().all(|e| *e == 1));
    }

    #[test]
    fn what_is_no_state_is_refused() {
        assert!(Generator::from_state(&[]).is_none());
        assert!(Generator::from_state(&[0; STATE_BYTES]).is_none());
        let mut state = seeded(1);
        state[LEFT..LEFT + 4].copy_from_slice(&700_u32.to_le_bytes());
        assert!(Generator::from_state(&state).is_none());
        let mut state = seeded(1);
        state[STATE + 5] = 1;
        assert!(Generator::from_state(&state).is_none());
    }
}
