//! The pairs of clusters that wait for their turn.
//!
//! A round starts with tens of thousands of pairs, which are sorted once and then read from the end; only what
//! comes up later is kept in a heap. Popping all of them from one heap would miss the cache at every step.

use std::collections::BinaryHeap;

use loafc_ir::nest::StepId;

use crate::order::ClusterId;
use crate::transforms::Proposal;

/// How many steps of the program make a block: about as much as a core's own cache holds what is known of.
const BLOCK: u32 = 1 << 7;

/// A pair waiting for its turn. The largest is taken first: most bytes saved, then the first block of the program,
/// then closest in program order, then smallest numbers.
///
/// Most pairs lose one side to another fusion before their turn. So a pair waits with a bound of what it could save,
/// and its score is computed when the bound comes up; if the score is less, it waits again. Fusions are made in the
/// order of their scores all the same.
///
/// The layers of a model are alike, and so are the scores of their pairs. By distance alone, each distance would lead
/// through the whole program again; block by block, what a pair is about was just looked at.
#[derive(Debug)]
pub struct Candidate {
    /// Bytes saved, or a random number where candidates are taken in random order; then the block, then how near the
    /// two are. One number, so that comparing two candidates needs no branch.
    key: u128,
    /// `None` as long as the priority is a bound. Boxed because the queue moves candidates around.
    pub proposal: Option<Box<Proposal>>,
    /// The one that runs first.
    pub first: ClusterId,
    /// The one that runs second.
    pub second: ClusterId,
}

impl Candidate {
    /// A pair without a score, and the first steps of the two.
    pub fn new(priority: u64, steps: [StepId; 2], first: ClusterId, second: ClusterId) -> Candidate {
        let [a, b] = steps.map(|step| step.0);
        let key = (u128::from(priority) << 64)
            | (u128::from(!(a.min(b) / BLOCK)) << 32)
            | u128::from(!a.abs_diff(b));
        Candidate { key, proposal: None, first, second }
    }

    /// How far apart the first steps of the two are.
    pub fn distance(&self) -> u32 {
        !(self.key as u32)
    }

    /// Changes what it is worth.
    pub fn set_priority(&mut self, priority: u64) {
        self.key = (u128::from(priority) << 64) | u128::from(self.key as u64);
    }

    /// What decides between equal keys; the smaller goes first.
    fn numbers(&self) -> u64 {
        (u64::from(self.first.0) << 32) | u64::from(self.second.0)
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Candidate {}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
    fn lt(&self, other: &Self) -> bool {
        (self.key < other.key) | ((self.key == other.key) & (self.numbers() > other.numbers()))
    }
    fn le(&self, other: &Self) -> bool {
        !other.lt(self)
    }
    fn gt(&self, other: &Self) -> bool {
        other.lt(self)
    }
    fn ge(&self, other: &Self) -> bool {
        !self.lt(other)
    }
}
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key).then(other.numbers().cmp(&self.numbers()))
    }
}

/// A priority queue.
#[derive(Debug, Default)]
pub struct Queue {
    /// Ascending.
    sorted: Vec<Candidate>,
    later: BinaryHeap<Candidate>,
}

impl Queue {
    /// Adds the candidates that a round starts with.
    pub fn start(&mut self, candidates: Vec<Candidate>) {
        self.later.extend(std::mem::replace(&mut self.sorted, candidates));
        self.sorted.sort_unstable();
    }

    /// Adds one.
    pub fn push(&mut self, candidate: Candidate) {
        self.later.push(candidate);
    }

    /// The largest.
    pub fn peek(&self) -> Option<&Candidate> {
        self.sorted.last().max(self.later.peek())
    }

    /// Forgets candidates that have no score and that `is_alive` does not want.
    pub fn retain(&mut self, is_alive: impl Fn(&Candidate) -> bool) {
        self.later.retain(|candidate| candidate.proposal.is_some() || is_alive(candidate));
    }

    /// Takes the largest.
    pub fn pop(&mut self) -> Option<Candidate> {
        if self.sorted.last() > self.later.peek() { self.sorted.pop() } else { self.later.pop() }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use proptest::prelude::*;

    fn candidate(priority: u64, second: u32) -> Candidate {
        Candidate::new(priority, [StepId(0), StepId(1)], ClusterId(0), ClusterId(second))
    }

    #[test]
    fn pairs_of_equal_score_are_taken_block_by_block_and_there_the_closest_first() {
        let next_block = BLOCK + 1;
        let steps = [(next_block, next_block + 1), (2, 9), (3, 4), (0, next_block)];
        let mut queue = Queue::default();
        queue.start(
            steps
                .iter()
                .map(|(a, b)| Candidate::new(7, [StepId(*a), StepId(*b)], ClusterId(*a), ClusterId(*b)))
                .collect(),
        );
        let taken: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|c| c.first.0).collect();
        assert_eq!(taken, [3, 2, 0, next_block]);
    }

    proptest! {
        #[test]
        fn the_largest_comes_first_whenever_it_was_added(
            start in prop::collection::vec(0u64..20, 0..20),
            later in prop::collection::vec((0u64..20, any::<bool>()), 0..40),
        ) {
            let mut queue = Queue::default();
            queue.start(start.iter().zip(0..).map(|(p, k)| candidate(*p, k)).collect());
            let mut expected: Vec<(u64, Reverse<u32>)> =
                start.iter().zip(0..).map(|(p, k)| (*p, Reverse(k))).collect();
            for ((priority, pop), k) in later.into_iter().zip(100..) {
                queue.push(candidate(priority, k));
                expected.push((priority, Reverse(k)));
                expected.sort_unstable();
                let peeked = queue.peek().map(|c| ((c.key >> 64) as u64, Reverse(c.second.0)));
                prop_assert_eq!(peeked, expected.last().copied());
                if pop {
                    let popped = queue.pop().map(|c| ((c.key >> 64) as u64, Reverse(c.second.0)));
                    prop_assert_eq!(popped, expected.pop());
                }
            }
        }
    }
}
