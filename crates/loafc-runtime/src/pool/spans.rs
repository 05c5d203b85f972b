//! Which addresses of a pool's memory are free: spans in order of address that grow together with their neighbours,
//! so that memory of many small results serves a large one later and the other way round. A span is warm where pages
//! of the machine stand behind it and cold where none do; warm ones are handed out first. Nothing here touches the
//! memory itself.

use std::collections::{BTreeMap, BTreeSet};

/// Addresses from `start` on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// First byte.
    pub start: usize,
    /// Length; never 0.
    pub bytes: usize,
}

impl Span {
    pub(super) fn end(&self) -> usize {
        self.start + self.bytes
    }
}

/// A span of memory that is not handed out.
#[derive(Copy, Clone, Debug)]
struct Free {
    bytes: usize,
    /// When its youngest part came back; nothing for a cold span.
    warm: Option<u64>,
}

/// The free spans of all segments.
#[derive(Default)]
pub(super) struct Spans {
    /// By first byte. Neighbours that are both warm or both cold are one span.
    free: BTreeMap<usize, Free>,
    /// Warm spans by length and first byte.
    warm: BTreeSet<(usize, usize)>,
    /// Cold spans by length and first byte.
    cold: BTreeSet<(usize, usize)>,
    /// Length of each segment by first byte. No span reaches over the end of its segment.
    segments: BTreeMap<usize, usize>,
    warm_bytes: usize,
    clock: u64,
}

impl Spans {
    /// Bytes of all warm spans.
    pub(super) fn warm_bytes(&self) -> usize {
        self.warm_bytes
    }

    /// Adds a segment, cold as a whole.
    pub(super) fn add_segment(&mut self, segment: Span) {
        self.segments.insert(segment.start, segment.bytes);
        self.insert(segment, None);
    }

    /// Hands out the first bytes of a span: of the smallest warm one that is large enough, else of the largest warm
    /// one that a cold one continues, else of the smallest cold one.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Span> {
        if let Some(&(_, start)) = self.warm.range((bytes, 0)..).next() {
            return self.take_front(start, bytes);
        }
        if let Some(start) = self.extensible(bytes) {
            let (warm, _) = self.remove(start)?;
            let (cold, _) = self.remove(warm.end())?;
            let whole = Span { start, bytes: warm.bytes + cold.bytes };
            return Some(self.split(whole, bytes, None));
        }
        let &(_, start) = self.cold.range((bytes, 0)..).next()?;
        self.take_front(start, bytes)
    }

    /// Takes back what was handed out; it is warm.
    pub(super) fn give_back(&mut self, span: Span) {
        self.clock += 1;
        self.insert(span, Some(self.clock));
    }

    /// Hands out warm memory that was not used for the longest time, at most `bytes` of it, so that the caller can
    /// give its pages back.
    pub(super) fn take_oldest(&mut self, bytes: usize) -> Option<Span> {
        let age = |(_, start): &&(usize, usize)| self.free.get(start).and_then(|free| free.warm);
        let &(length, start) = self.warm.iter().min_by_key(age)?;
        self.take_front(start, length.min(bytes.max(1)))
    }

    /// Takes back memory behind which no pages stand any more. Returns its segment if no other part of that is in
    /// use or warm; the segment is forgotten then.
    pub(super) fn give_back_cold(&mut self, span: Span) -> Option<Span> {
        let merged = self.insert(span, None);
        if self.segments.get(&merged.start) != Some(&merged.bytes) {
            return None;
        }
        self.segments.remove(&merged.start);
        self.remove(merged.start).map(|(segment, _)| segment)
    }

    /// The longest warm span that holds `bytes` together with the cold one behind it.
    fn extensible(&self, bytes: usize) -> Option<usize> {
        let behind = self.cold.iter().filter_map(|&(length, start)| {
            let (&before, free) = self.free.range(..start).next_back()?;
            let adjoins = before + free.bytes == start && !self.segments.contains_key(&start);
            (adjoins && free.bytes + length >= bytes).then_some((free.bytes, before))
        });
        behind.max().map(|(_, start)| start)
    }

    fn take_front(&mut self, start: usize, bytes: usize) -> Option<Span> {
        let (whole, warm) = self.remove(start)?;
        Some(self.split(whole, bytes, warm))
    }

    /// The first bytes of a span that is in none of the tables; the rest becomes free.
    fn split(&mut self, whole: Span, bytes: usize, warm: Option<u64>) -> Span {
        if whole.bytes > bytes {
            self.insert(Span { start: whole.start + bytes, bytes: whole.bytes - bytes }, warm);
        }
        Span { start: whole.start, bytes }
    }

    /// Makes a span free, together with its neighbours of the same kind; returns what became of them.
    fn insert(&mut self, span: Span, warm: Option<u64>) -> Span {
        let (mut merged, mut stamp) = (span, warm);
        let is_alike = |free: &Free| free.warm.is_some() == warm.is_some();
        let before = self.free.range(..span.start).next_back();
        let before = before.filter(|(at, f)| **at + f.bytes == span.start && is_alike(f)).map(|(at, _)| *at);
        let before = before.filter(|_| !self.segments.contains_key(&span.start));
        if let Some((neighbour, age)) = before.and_then(|at| self.remove(at)) {
            merged = Span { start: neighbour.start, bytes: merged.bytes + neighbour.bytes };
            stamp = stamp.max(age);
        }
        let behind = span.end();
        let continues = self.free.get(&behind).is_some_and(is_alike) && !self.segments.contains_key(&behind);
        if let Some((neighbour, age)) = continues.then(|| self.remove(behind)).flatten() {
            merged.bytes += neighbour.bytes;
            stamp = stamp.max(age);
        }
        self.free.insert(merged.start, Free { bytes: merged.bytes, warm: stamp });
        if stamp.is_some() {
            self.warm.insert((merged.bytes, merged.start));
            self.warm_bytes += merged.bytes;
        } else {
            self.cold.insert((merged.bytes, merged.start));
        }
        merged
    }

    /// Takes a free span out of all tables, with the time of a warm one.
    fn remove(&mut self, start: usize) -> Option<(Span, Option<u64>)> {
        let free = self.free.remove(&start)?;
        if free.warm.is_some() {
            self.warm.remove(&(free.bytes, start));
            self.warm_bytes -= free.bytes;
        } else {
            self.cold.remove(&(free.bytes, start));
        }
        Some((Span { start, bytes: free.bytes }, free.warm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: usize = 1000;

    fn span(start: usize, bytes: usize) -> Span {
        Span { start, bytes }
    }

    fn spans(segments: &[usize]) -> Spans {
        let mut spans = Spans::default();
        for start in segments {
            spans.add_segment(span(*start, SEGMENT));
        }
        spans
    }

    #[test]
    fn neighbours_that_came_back_serve_a_larger_request() {
        let mut spans = spans(&[0]);
        let taken: Vec<Span> = (0..3).map(|_| spans.take(100).unwrap()).collect();
        assert_eq!(taken, [span(0, 100), span(100, 100), span(200, 100)]);
        for k in [0, 2, 1] {
            spans.give_back(taken[k]);
        }
        assert_eq!(spans.take(300), Some(span(0, 300)));
        assert_eq!(spans.warm_bytes(), 0);
    }

    #[test]
    fn the_smallest_warm_span_that_is_large_enough_comes_first() {
        let mut spans = spans(&[0]);
        let taken: Vec<Span> = [300, 10, 100, 10].map(|bytes| spans.take(bytes).unwrap()).to_vec();
        spans.give_back(taken[0]);
        spans.give_back(taken[2]);
        assert_eq!(spans.take(90), Some(span(310, 90)));
        assert_eq!(spans.take(90), Some(span(0, 90)));
    }

    #[test]
    fn a_warm_span_that_is_too_small_is_continued_into_cold_memory() {
        let mut spans = spans(&[0]);
        let first = spans.take(100).unwrap();
        spans.give_back(first);
        assert_eq!(spans.take(250), Some(span(0, 250)));
        assert_eq!(spans.warm_bytes(), 0);
        assert_eq!(spans.take(750), Some(span(250, 750)));
        assert_eq!(spans.take(1), None);
    }

    #[test]
    fn spans_of_adjoining_segments_stay_apart() {
        let mut spans = spans(&[0, SEGMENT]);
        assert_eq!(spans.take(SEGMENT + 1), None);
        let (a, b) = (spans.take(SEGMENT).unwrap(), spans.take(SEGMENT).unwrap());
        spans.give_back(a);
        spans.give_back(b);
        assert_eq!(spans.take(SEGMENT + 1), None);
        assert_eq!(spans.take(SEGMENT), Some(span(0, SEGMENT)));
    }

    #[test]
    fn the_longest_unused_goes_first_and_a_whole_cold_segment_is_forgotten() {
        let mut spans = spans(&[0]);
        let taken: Vec<Span> = (0..4).map(|_| spans.take(250).unwrap()).collect();
        spans.give_back(taken[2]);
        spans.give_back(taken[0]);
        let oldest = spans.take_oldest(usize::MAX).unwrap();
        assert_eq!(oldest, span(500, 250));
        assert_eq!(spans.give_back_cold(oldest), None);
        let part = spans.take_oldest(50).unwrap();
        assert_eq!(part, span(0, 50));
        assert_eq!(spans.give_back_cold(part), None);
        spans.give_back(taken[1]);
        spans.give_back(taken[3]);
        while let Some(oldest) = spans.take_oldest(usize::MAX) {
            let segment = spans.give_back_cold(oldest);
            assert_eq!(segment.is_some(), spans.warm_bytes() == 0);
        }
        assert_eq!(spans.take(1), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        GiveBack(prop::sample::Index),
        Trim(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1usize..400).prop_map(Step::Take),
            3 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
            1 => (1usize..500).prop_map(Step::Trim),
        ];
        prop::collection::vec(step, 1..120)
    }

    proptest! {
        #[test]
        fn nothing_is_handed_out_twice_or_lost(steps in steps()) {
            let mut spans = spans(&[0, SEGMENT, 5 * SEGMENT]);
            let (mut live, mut total) = (Vec::<Span>::new(), 3 * SEGMENT);
            for step in steps {
                match step {
                    Step::Take(bytes) => live.extend(spans.take(bytes)),
                    Step::GiveBack(index) if !live.is_empty() => {
                        spans.give_back(live.swap_remove(index.index(live.len())));
                    }
                    Step::GiveBack(_) => {}
                    Step::Trim(bytes) => {
                        if let Some(oldest) = spans.take_oldest(bytes) {
                            total -= spans.give_back_cold(oldest).map_or(0, |segment| segment.bytes);
                        }
                    }
                }
                let free = spans.free.iter().map(|(start, f)| span(*start, f.bytes));
                let mut all: Vec<Span> = live.iter().copied().chain(free).collect();
                all.sort_by_key(|s| s.start);
                prop_assert!(all.windows(2).all(|w| w[0].end() <= w[1].start));
                prop_assert_eq!(all.iter().map(|s| s.bytes).sum::<usize>(), total);
                prop_assert_eq!(spans.warm.iter().map(|w| w.0).sum::<usize>(), spans.warm_bytes());
                prop_assert_eq!(spans.warm.len() + spans.cold.len(), spans.free.len());
                let neighbours = spans.free.iter().zip(spans.free.iter().skip(1));
                for ((a, first), (b, second)) in neighbours {
                    let could_merge = a + first.bytes == *b && !spans.segments.contains_key(b);
                    prop_assert!(!could_merge || first.warm.is_some() != second.warm.is_some());
                }
            }
        }
    }
}
