//! Where each buffer lives in one call. Buffers with lifetimes that don't overlap share memory of one arena; a
//! buffer may take over the place of one that its kernel reads for the last time. Results get blocks of their
//! own, because the caller keeps them.

use crate::pool::ALIGNMENT;

/// A buffer as the planner sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Size in this call.
    pub bytes: usize,
    /// First and last step that uses it; `None` if no step does.
    pub steps: Option<(usize, usize)>,
    /// Who provides the memory.
    pub owner: Owner,
    /// The buffer whose place it may take over, if that ends at the step where this one begins and is no smaller.
    pub in_place_of: Option<usize>,
}

/// Who provides a buffer's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The caller, as the input of this position.
    Input(usize),
    /// An extern call.
    Library,
    /// The runtime; the buffer outlives the call.
    Output,
    /// The runtime, within the call.
    Call,
}

/// Where a buffer's memory is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The input of this position.
    Input(usize),
    /// What an extern call returns.
    Library,
    /// A block of its own.
    Block,
    /// This many bytes into the arena.
    Arena(usize),
    /// Nowhere: nothing uses it.
    Nowhere,
}

/// Places of all buffers in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// By buffer.
    pub places: Vec<Place>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
}

impl MemoryPlan {
    /// The buffers at such places.
    pub fn positions(&self, wanted: impl Fn(&Place) -> bool) -> Vec<usize> {
        self.places.iter().enumerate().filter(|(_, p)| wanted(p)).map(|(b, _)| b).collect()
    }
}

/// Free ranges of the arena, in order and never adjacent.
#[derive(Default)]
struct Arena {
    free: Vec<(usize, usize)>,
    end: usize,
}

impl Arena {
    /// The smallest free range that fits, else the end (together with a free range that reaches it).
    fn take(&mut self, bytes: usize) -> usize {
        let fitting = self.free.iter().enumerate().filter(|(_, r)| r.1 - r.0 >= bytes);
        if let Some((k, _)) = fitting.min_by_key(|(_, r)| r.1 - r.0) {
            let start = self.free[k].0;
            self.free[k].0 += bytes;
            if self.free[k].0 == self.free[k].1 {
                self.free.remove(k);
            }
            return start;
        }
        let start = match self.free.last() {
            Some(last) if last.1 == self.end => self.free.pop().map_or(self.end, |r| r.0),
            _ => self.end,
        };
        self.end = start + bytes;
        start
    }

    fn give_back(&mut self, start: usize, bytes: usize) {
        let mut range = (start, start + bytes);
        let mut at = self.free.partition_point(|r| r.0 < start);
        if at < self.free.len() && self.free[at].0 == range.1 {
            range.1 = self.free.remove(at).1;
        }
        if at > 0 && self.free[at - 1].1 == range.0 {
            at -= 1;
            range.0 = self.free.remove(at).0;
        }
        self.free.insert(at, range);
    }
}

/// Plans the memory of a call with this many steps.
pub fn plan(buffers: &[Lifetime], steps: usize) -> MemoryPlan {
    let mut places: Vec<Place> = buffers.iter().map(fixed_place).collect();
    let (mut begins, mut ends) = (vec![Vec::new(); steps], vec![Vec::new(); steps]);
    for (b, buffer) in buffers.iter().enumerate() {
        if let (Owner::Call, Some((first, last))) = (buffer.owner, buffer.steps) {
            begins[first].push(b);
            ends[last].push(b);
        }
    }
    let mut arena = Arena::default();
    // Bytes that a buffer gives back; a buffer whose place was taken over gives nothing back.
    let mut held = vec![0usize; buffers.len()];
    for step in 0..steps {
        for &b in &begins[step] {
            if let Some(old) = taken_over(buffers, &held, b, step) {
                places[b] = places[old];
                held[b] = std::mem::take(&mut held[old]);
                continue;
            }
            held[b] = buffers[b].bytes.next_multiple_of(ALIGNMENT);
            places[b] = Place::Arena(if held[b] == 0 { 0 } else { arena.take(held[b]) });
        }
        for &b in &ends[step] {
            if let (Place::Arena(start), true) = (places[b], held[b] > 0) {
                arena.give_back(start, std::mem::take(&mut held[b]));
            }
        }
    }
    MemoryPlan { places, arena_bytes: arena.end }
}

fn fixed_place(buffer: &Lifetime) -> Place {
    match (buffer.owner, buffer.steps) {
        (Owner::Input(position), _) => Place::Input(position),
        (Owner::Output, _) => Place::Block,
        (Owner::Library, Some(_)) => Place::Library,
        (Owner::Library | Owner::Call, _) => Place::Nowhere,
    }
}

/// The buffer whose place `b` takes over at `step`.
fn taken_over(buffers: &[Lifetime], held: &[usize], b: usize, step: usize) -> Option<usize> {
    let old = buffers[b].in_place_of?;
    // One that also begins here may itself sit where another buffer of this step still is.
    let ends_here =
        buffers[old].steps.is_some_and(|s| s.0 < step && s.1 == step) && buffers[old].owner == Owner::Call;
    (ends_here && held[old] > 0 && held[old] >= buffers[b].bytes).then_some(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own(bytes: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, steps: Some((first, last)), owner: Owner::Call, in_place_of: None }
    }

    #[test]
    fn buffers_that_never_live_together_share_memory() {
        let p = plan(&[own(100, 0, 1), own(100, 1, 2), own(100, 2, 3)], 4);
        assert_eq!(p.arena_bytes, 256);
        assert_eq!(p.places, [Place::Arena(0), Place::Arena(128), Place::Arena(0)]);
    }

    #[test]
    fn a_buffer_takes_over_the_place_of_the_one_it_overwrites() {
        let mut second = own(100, 1, 2);
        second.in_place_of = Some(0);
        let p = plan(&[own(100, 0, 1), second], 3);
        assert_eq!(p.arena_bytes, 128);
        let still_read = plan(&[own(100, 0, 2), second], 3);
        assert_eq!(still_read.arena_bytes, 256);
    }

    #[test]
    fn a_place_is_not_handed_on_twice_within_a_step() {
        let mut second = own(0, 1, 1);
        second.in_place_of = Some(0);
        let mut third = own(100, 1, 2);
        third.in_place_of = Some(1);
        let p = plan(&[own(100, 0, 1), second, third], 3);
        assert_eq!(p.places[0], Place::Arena(0));
        assert_eq!(p.places[2], Place::Arena(128));
    }

    #[test]
    fn results_and_inputs_stay_out_of_the_arena() {
        let of = |owner| Lifetime { owner, ..own(64, 0, 0) };
        let p = plan(&[of(Owner::Output), of(Owner::Input(3)), of(Owner::Library)], 1);
        assert_eq!(p.places, [Place::Block, Place::Input(3), Place::Library]);
        assert_eq!(p.arena_bytes, 0);
    }

    #[test]
    fn neighbouring_gaps_grow_together() {
        let p = plan(&[own(64, 0, 0), own(64, 0, 1), own(64, 0, 0), own(64, 0, 3), own(192, 2, 3)], 4);
        assert_eq!(p.arena_bytes, 256);
        assert_eq!(p.places[4], Place::Arena(0));
    }

    proptest! {
        #[test]
        fn buffers_that_live_together_never_overlap(
            given in prop::collection::vec((0usize..400, 0usize..12, 0usize..5, any::<Option<prop::sample::Index>>()), 1..40),
        ) {
            let mut buffers: Vec<Lifetime> = Vec::new();
            for (k, (bytes, first, length, old)) in given.iter().enumerate() {
                // As the caller promises: a buffer has at most one successor.
                let old = old.filter(|_| k > 0).map(|i| i.index(k));
                let free = old.filter(|o| buffers.iter().all(|b| b.in_place_of != Some(*o)));
                buffers.push(Lifetime { in_place_of: free, ..own(*bytes, *first, first + length) });
            }
            let p = plan(&buffers, 20);
            for (i, a) in buffers.iter().enumerate() {
                let Place::Arena(at) = p.places[i] else { panic!("not placed") };
                prop_assert!(at + a.bytes <= p.arena_bytes || a.bytes == 0);
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let (s, t) = (a.steps.unwrap(), b.steps.unwrap());
                    let together = s.0 <= t.1 && t.0 <= s.1;
                    let handed_over = (b.in_place_of == Some(i) && s.1 == t.0) || (a.in_place_of == Some(j) && t.1 == s.0);
                    let Place::Arena(other) = p.places[j] else { panic!("not placed") };
                    let overlap = a.bytes > 0 && b.bytes > 0 && at < other + b.bytes && other < at + a.bytes;
                    prop_assert!(!(together && overlap && !handed_over));
                }
            }
        }
    }
}
