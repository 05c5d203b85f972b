//! Where each buffer lives in one call. Small buffers with lifetimes that don't overlap share memory of one arena.
//! Large ones take a block of the pool for as long as they live, which before and after serves other calls, results,
//! and what the caller lets go of. A buffer may take over the place of one that its kernel reads for the last time.
//! Results get blocks of their own, because the caller keeps them.

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
    /// The block of this other buffer, which it takes over.
    BlockOf(usize),
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
    /// By step: buffers that get their block before it.
    pub takes: Vec<Vec<usize>>,
    /// By step: buffers whose block goes back behind it.
    pub gives_back: Vec<Vec<usize>>,
    /// By step: buffers that take over a block with it, each with the one that got the block.
    pub takes_over: Vec<Vec<(usize, usize)>>,
    /// Results that no step uses; they have a block all the same.
    pub untouched: Vec<usize>,
}

/// Bytes from which on a buffer has a block of its own.
const OWN_BLOCK: usize = 256 << 10;

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
    let (mut takes, mut gives_back) = (vec![Vec::new(); steps], vec![Vec::new(); steps]);
    let (mut takes_over, mut untouched) = (vec![Vec::new(); steps], Vec::new());
    for (b, buffer) in buffers.iter().enumerate() {
        match (buffer.owner, buffer.steps) {
            (Owner::Call, Some((first, last))) => {
                begins[first].push(b);
                ends[last].push(b);
            }
            (Owner::Output, Some((first, _))) => takes[first].push(b),
            (Owner::Output, None) => untouched.push(b),
            _ => {}
        }
    }
    let mut arena = Arena::default();
    // Bytes that a buffer gives back; a buffer whose place was taken over gives nothing back.
    let mut held = vec![0usize; buffers.len()];
    for step in 0..steps {
        for &b in &begins[step] {
            if let Some(old) = taken_over(buffers, &held, b, step) {
                places[b] = match places[old] {
                    Place::Block => Place::BlockOf(old),
                    place => place,
                };
                if let Place::BlockOf(first) = places[b] {
                    takes_over[step].push((b, first));
                }
                held[b] = std::mem::take(&mut held[old]);
                continue;
            }
            held[b] = buffers[b].bytes.next_multiple_of(ALIGNMENT);
            places[b] = match held[b] {
                0 => Place::Arena(0),
                bytes if bytes < OWN_BLOCK => Place::Arena(arena.take(bytes)),
                _ => {
                    takes[step].push(b);
                    Place::Block
                }
            };
        }
        for &b in &ends[step] {
            let bytes = std::mem::take(&mut held[b]);
            match places[b] {
                _ if bytes == 0 => {}
                Place::Arena(start) => arena.give_back(start, bytes),
                Place::BlockOf(first) => gives_back[step].push(first),
                _ => gives_back[step].push(b),
            }
        }
    }
    MemoryPlan { places, arena_bytes: arena.end, takes, gives_back, takes_over, untouched }
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
        assert_eq!((p.takes, p.gives_back), (vec![vec![0]], vec![vec![]]));
    }

    #[test]
    fn a_large_buffer_has_a_block_from_its_first_step_to_its_last_heir_s() {
        let mut second = own(OWN_BLOCK, 1, 2);
        second.in_place_of = Some(0);
        let mut third = own(OWN_BLOCK, 2, 3);
        third.in_place_of = Some(1);
        let p = plan(&[own(OWN_BLOCK, 0, 1), second, third, own(OWN_BLOCK, 1, 1)], 4);
        assert_eq!(p.places, [Place::Block, Place::BlockOf(0), Place::BlockOf(0), Place::Block]);
        assert_eq!(p.takes, [vec![0], vec![3], vec![], vec![]]);
        assert_eq!(p.takes_over, [vec![], vec![(1, 0)], vec![(2, 0)], vec![]]);
        assert_eq!(p.gives_back, [vec![], vec![3], vec![], vec![0]]);
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
            unit in prop::sample::select(vec![1, OWN_BLOCK / 200]),
        ) {
            let mut buffers: Vec<Lifetime> = Vec::new();
            for (k, (bytes, first, length, old)) in given.iter().enumerate() {
                // As the caller promises: a buffer has at most one successor.
                let old = old.filter(|_| k > 0).map(|i| i.index(k));
                let free = old.filter(|o| buffers.iter().all(|b| b.in_place_of != Some(*o)));
                buffers.push(Lifetime { in_place_of: free, ..own(bytes * unit, *first, first + length) });
            }
            let p = plan(&buffers, 20);
            // The block that a buffer lies in, and bytes into that; the arena counts as one.
            let place = |b: usize| match p.places[b] {
                Place::Arena(at) => (None, at),
                Place::Block => (Some(b), 0),
                Place::BlockOf(first) => (Some(first), 0),
                other => panic!("{other:?}"),
            };
            let step_of = |lists: &[Vec<usize>], b: usize| lists.iter().position(|list| list.contains(&b));
            for (i, a) in buffers.iter().enumerate() {
                let (block, at) = place(i);
                let s = a.steps.unwrap();
                match block {
                    None => prop_assert!(at + a.bytes <= p.arena_bytes || a.bytes == 0),
                    Some(first) => {
                        prop_assert!(buffers[first].bytes >= a.bytes);
                        prop_assert!(step_of(&p.takes, first).is_some_and(|k| k <= s.0));
                        prop_assert!(step_of(&p.gives_back, first).is_some_and(|k| k >= s.1));
                    }
                }
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let t = b.steps.unwrap();
                    let together = s.0 <= t.1 && t.0 <= s.1;
                    let handed_over = (b.in_place_of == Some(i) && s.1 == t.0) || (a.in_place_of == Some(j) && t.1 == s.0);
                    let (other_block, other) = place(j);
                    let overlap = block == other_block && a.bytes > 0 && b.bytes > 0 && at < other + b.bytes && other < at + a.bytes;
                    prop_assert!(!(together && overlap && !handed_over));
                }
            }
        }
    }
}
