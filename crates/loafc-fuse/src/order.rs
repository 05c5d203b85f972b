//! A topological order of clusters that is kept while they are merged, and the test whether merging two would
//! close a cycle.
//!
//! The order is a list with labels that grow along it, as in Dietz and Sleator, "Two algorithms for maintaining order
//! in a list" (1987). A merge needs to know only what the first of the two leads to before the second, or what
//! the second needs behind the first. Both searches run in turn, and the one that ends first is enough: most
//! pairs are a value and its only reader, and cost nothing.

use loafc_ir::nest::{BufferId, NestProgram, Op, Step, StepId};
use smallvec::SmallVec;

use crate::FuseError;
use crate::options::{FAR, MAX_FAR_PATH_SEARCH, MAX_PATH_SEARCH};

/// A cluster during scheduling; ids are never used twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub u32);

/// Most lists of steps have a few entries; with a place of their own in memory each they would miss the cache.
pub type Steps = SmallVec<[StepId; 4]>;

/// Which steps must run before which, in program order.
pub struct StepGraph {
    /// For each step, earlier steps that it needs, each once.
    pub before: Vec<Steps>,
    /// For each step, later steps that need it, each once.
    pub after: Vec<Steps>,
    /// For each buffer, the steps that touch it, in order.
    pub users: Vec<Steps>,
    /// Steps that are calls into a library, in order.
    pub externs: Vec<StepId>,
}

#[derive(Default, Clone)]
struct BufferState {
    writer: Option<StepId>,
    readers: Steps,
}

/// Finds dependencies, step by step.
pub struct StepGraphBuilder {
    graph: StepGraph,
    buffers: Vec<BufferState>,
    last_ordered: Option<StepId>,
}

impl StepGraphBuilder {
    /// A graph that has room for a program's steps.
    pub fn new(program: &NestProgram) -> StepGraphBuilder {
        let count = program.steps.len();
        let graph = StepGraph {
            before: Vec::with_capacity(count),
            after: Vec::with_capacity(count),
            users: vec![SmallVec::new(); program.buffers.len()],
            externs: Vec::new(),
        };
        let buffers = vec![BufferState::default(); program.buffers.len()];
        StepGraphBuilder { graph, buffers, last_ordered: None }
    }

    /// Adds the program's next step.
    ///
    /// # Errors
    /// When it names a buffer that the program does not have.
    pub fn add(&mut self, step: &Step) -> Result<(), FuseError> {
        let (graph, count) = (&mut self.graph, self.buffers.len());
        let k = graph.before.len();
        let id = StepId(k as u32);
        graph.before.push(SmallVec::new());
        graph.after.push(SmallVec::new());
        let (reads, writes) = touched(step);
        for buffer in reads.iter().chain(&writes) {
            let Some(users) = graph.users.get_mut(buffer.0 as usize) else {
                return Err(FuseError::UnknownBuffer { step: k, buffer: buffer.0, count });
            };
            if users.last() != Some(&id) {
                users.push(id);
            }
        }
        for buffer in &reads {
            if let Some(writer) = self.buffers[buffer.0 as usize].writer {
                graph.add(writer, id);
            }
        }
        for buffer in &writes {
            let old = &mut self.buffers[buffer.0 as usize];
            let readers = std::mem::take(&mut old.readers);
            let writer = old.writer.replace(id);
            for earlier in readers.into_iter().chain(writer) {
                graph.add(earlier, id);
            }
        }
        for buffer in &reads {
            let state = &mut self.buffers[buffer.0 as usize];
            if state.writer != Some(id) {
                state.readers.push(id);
            }
        }
        if let Step::Extern(call) = step {
            graph.externs.push(id);
            if call.ordered
                && let Some(earlier) = self.last_ordered.replace(id)
            {
                graph.add(earlier, id);
            }
        }
        Ok(())
    }

    /// The graph of all steps that were added.
    pub fn finish(self) -> StepGraph {
        self.graph
    }
}

impl StepGraph {
    /// Memory dependencies (a reader after its writer, a writer after the last one) and weak ones (a writer after
    /// the readers of the old value); extern calls that must keep their order form a chain.
    ///
    /// # Errors
    /// When a step names a buffer that the program does not have.
    pub fn new(program: &NestProgram) -> Result<StepGraph, FuseError> {
        let mut builder = StepGraphBuilder::new(program);
        for step in &program.steps {
            builder.add(step)?;
        }
        Ok(builder.finish())
    }

    /// All dependencies as pairs of steps, the earlier one first.
    pub fn edges(&self) -> Vec<(u32, u32)> {
        let mut edges = Vec::with_capacity(self.before.iter().map(SmallVec::len).sum());
        for (k, before) in self.before.iter().enumerate() {
            edges.extend(before.iter().map(|b| (b.0, k as u32)));
        }
        edges
    }

    fn add(&mut self, earlier: StepId, later: StepId) {
        if earlier == later || self.before[later.0 as usize].contains(&earlier) {
            return;
        }
        self.before[later.0 as usize].push(earlier);
        self.after[earlier.0 as usize].push(later);
    }
}

/// Buffers that a step reads, and those that it writes.
fn touched(step: &Step) -> (SmallVec<[BufferId; 8]>, SmallVec<[BufferId; 4]>) {
    let (mut reads, mut writes) = (SmallVec::new(), SmallVec::new());
    match step {
        Step::Nest(nest) => {
            for op in &nest.body.ops {
                match op {
                    Op::Load { buffer, .. } if !reads.contains(buffer) => reads.push(*buffer),
                    Op::Store { buffer, .. } if !writes.contains(buffer) => writes.push(*buffer),
                    _ => {}
                }
            }
        }
        Step::Extern(call) => {
            reads.extend(call.tensors.iter().map(|t| t.buffer));
            writes.extend(call.mutates.iter().map(|k| call.tensors[*k].buffer));
            writes.extend(call.results.iter().flatten().map(|t| t.buffer));
        }
    }
    (reads, writes)
}

/// Clusters in a topological order.
pub struct Order<'a> {
    graph: &'a StepGraph,
    /// Cluster of each step.
    of_step: Vec<ClusterId>,
    /// A step of each cluster.
    some_step: Vec<StepId>,
    /// For each step, the next one of its cluster; behind the last comes the first.
    next_in_cluster: Vec<StepId>,
    /// Steps of other clusters that each merged cluster leads to, and those that it needs. For a step that is a cluster
    /// by itself the graph tells.
    leads_to: Vec<Steps>,
    needs: Vec<Steps>,
    /// Label of each cluster: grows along the list; edges lead from smaller to larger ones. Searches read nothing
    /// else of the list.
    labels: Vec<u64>,
    /// Place of each cluster in the list.
    links: Vec<Link>,
    /// Marks of the search under way, so that none has to be cleared.
    visited: Vec<Mark>,
    search: u32,
    after: Vec<ClusterId>,
    before: Vec<ClusterId>,
}

/// A cluster's place in the list.
#[derive(Copy, Clone)]
struct Link {
    previous: u32,
    next: u32,
}

/// In which search a cluster was last found, and from which side.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Mark {
    search: u32,
    direction: Direction,
}

/// Why two clusters can't be merged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unmergeable {
    /// Something that must run between them.
    Cycle,
    /// Too much lies between them to find out.
    TooFar,
}

/// Stands in for the neighbour that the first and the last cluster don't have.
const NOBODY: u32 = u32::MAX;

impl<'a> Order<'a> {
    /// Each step a cluster of its own, in program order.
    pub fn new(graph: &'a StepGraph) -> Self {
        let count = graph.before.len() as u32;
        let link = |k: u32| Link {
            previous: k.checked_sub(1).unwrap_or(NOBODY),
            next: if k + 1 < count { k + 1 } else { NOBODY },
        };
        let mut order = Order {
            graph,
            of_step: (0..count).map(ClusterId).collect(),
            some_step: with_room((0..count).map(StepId)),
            next_in_cluster: (0..count).map(StepId).collect(),
            leads_to: Vec::with_capacity(count as usize),
            needs: Vec::with_capacity(count as usize),
            labels: with_room((0..count).map(|_| 0)),
            links: with_room((0..count).map(link)),
            visited: with_room((0..count).map(|_| Mark { search: 0, direction: Direction::After })),
            search: 0,
            after: Vec::new(),
            before: Vec::new(),
        };
        if count > 0 {
            order.label_all(0);
        }
        order
    }

    /// The cluster that a step is in.
    pub fn cluster_of(&self, step: StepId) -> ClusterId {
        self.of_step[step.0 as usize]
    }

    /// A number that grows along the topological order.
    pub fn position(&self, cluster: ClusterId) -> u64 {
        self.labels[cluster.0 as usize]
    }

    /// Whether merging two, whose first steps are so far apart, would leave nothing between them; on success, what
    /// must move for it.
    pub fn plan_merge(
        &mut self,
        a: ClusterId,
        b: ClusterId,
        distance: u32,
    ) -> Result<MergePlan, Unmergeable> {
        let (first, second) = if self.position(a) < self.position(b) { (a, b) } else { (b, a) };
        self.search += 1;
        let mut after = std::mem::take(&mut self.after);
        let mut before = std::mem::take(&mut self.before);
        let most = if distance < FAR { MAX_PATH_SEARCH } else { MAX_FAR_PATH_SEARCH };
        let found = self.search_between(first, second, most, &mut after, &mut before);
        let plan = found.map(|direction| {
            let moved = if direction == Direction::After { &after } else { &before };
            let mut moved = moved.clone();
            moved.sort_unstable_by_key(|c| self.position(*c));
            MergePlan { first, second, direction, moved }
        });
        after.clear();
        before.clear();
        (self.after, self.before) = (after, before);
        plan
    }

    /// Which of the two searches came to its end: everything behind `first` that it leads to, or everything ahead of
    /// `second` that it needs, is then in its list.
    fn search_between(
        &mut self,
        first: ClusterId,
        second: ClusterId,
        most: usize,
        after: &mut Vec<ClusterId>,
        before: &mut Vec<ClusterId>,
    ) -> Result<Direction, Unmergeable> {
        self.visit(first, (first, second), Direction::After, after)?;
        if after.is_empty() {
            return Ok(Direction::After);
        }
        self.visit(second, (first, second), Direction::Before, before)?;
        for next in 0.. {
            let Some(cluster) = before.get(next).copied() else { return Ok(Direction::Before) };
            self.visit(cluster, (first, second), Direction::Before, before)?;
            let Some(cluster) = after.get(next).copied() else { return Ok(Direction::After) };
            self.visit(cluster, (first, second), Direction::After, after)?;
            if before.len() + after.len() > most {
                return Err(Unmergeable::TooFar);
            }
        }
        unreachable!("each round takes one from two finite lists")
    }

    /// Adds the neighbours of a cluster that lie between the two ends. A neighbour that the other search has met, or
    /// the other end itself by way of something else, closes a path between the ends.
    fn visit(
        &mut self,
        cluster: ClusterId,
        ends: (ClusterId, ClusterId),
        direction: Direction,
        found: &mut Vec<ClusterId>,
    ) -> Result<(), Unmergeable> {
        let (from, to) = if direction == Direction::After { ends } else { (ends.1, ends.0) };
        let range = self.position(ends.0)..=self.position(ends.1);
        let (of_steps, of_merged) = match direction {
            Direction::After => (&self.graph.after, &self.leads_to),
            Direction::Before => (&self.graph.before, &self.needs),
        };
        let neighbours = match (cluster.0 as usize).checked_sub(of_steps.len()) {
            Some(merged) => &of_merged[merged],
            None => &of_steps[cluster.0 as usize],
        };
        for neighbour in neighbours {
            let next = self.of_step[neighbour.0 as usize];
            if next == from || !range.contains(&self.position(next)) {
                continue;
            }
            if next == to {
                if cluster == from {
                    continue;
                }
                return Err(Unmergeable::Cycle);
            }
            let mark = &mut self.visited[next.0 as usize];
            if mark.search != self.search {
                *mark = Mark { search: self.search, direction };
                found.push(next);
            } else if mark.direction != direction {
                return Err(Unmergeable::Cycle);
            }
        }
        Ok(())
    }

    /// Merges two into a new cluster and mends the order.
    pub fn merge(&mut self, plan: MergePlan) -> ClusterId {
        let merged = ClusterId(self.labels.len() as u32);
        let MergePlan { first, second, direction, moved } = plan;
        let (some, other) = (self.some_step[first.0 as usize], self.some_step[second.0 as usize]);
        // Two rings that exchange what comes next are one.
        self.next_in_cluster.swap(some.0 as usize, other.0 as usize);
        let mut step = some;
        loop {
            self.of_step[step.0 as usize] = merged;
            step = self.next_in_cluster[step.0 as usize];
            if step == some {
                break;
            }
        }
        self.some_step.push(some);
        let count = self.of_step.len();
        for (lists, of_steps) in
            [(&mut self.leads_to, &self.graph.after), (&mut self.needs, &self.graph.before)]
        {
            let mut take = |cluster: ClusterId| match (cluster.0 as usize).checked_sub(count) {
                Some(k) => std::mem::take(&mut lists[k]),
                None => of_steps[cluster.0 as usize].iter().copied().collect(),
            };
            let mut outside = joined(take(first), take(second));
            outside.retain(|step| self.of_step[step.0 as usize] != merged);
            lists.push(outside);
        }
        self.visited.push(Mark { search: 0, direction });

        // What the first leads to goes behind the second, which all else may stay ahead of; or the other way round.
        let (stays, leaves) = if direction == Direction::After { (second, first) } else { (first, second) };
        self.unlink(leaves);
        for cluster in &moved {
            self.unlink(*cluster);
        }
        let place = self.links[stays.0 as usize];
        self.links.push(place);
        self.labels.push(self.labels[stays.0 as usize]);
        self.join(place.previous, merged.0);
        self.join(merged.0, place.next);
        match direction {
            Direction::After => self.insert(merged.0, &moved, place.next),
            Direction::Before => self.insert(place.previous, &moved, merged.0),
        }
        merged
    }

    fn join(&mut self, left: u32, right: u32) {
        if left != NOBODY {
            self.links[left as usize].next = right;
        }
        if right != NOBODY {
            self.links[right as usize].previous = left;
        }
    }

    fn unlink(&mut self, cluster: ClusterId) {
        let Link { previous, next, .. } = self.links[cluster.0 as usize];
        self.join(previous, next);
    }

    /// Puts clusters between two neighbours of the list.
    fn insert(&mut self, left: u32, moved: &[ClusterId], right: u32) {
        let Some((head, tail)) = moved.first().zip(moved.last()) else { return };
        for pair in moved.windows(2) {
            self.join(pair[0].0, pair[1].0);
        }
        self.links[head.0 as usize].previous = left;
        self.links[tail.0 as usize].next = right;
        self.join(left, head.0);
        self.join(tail.0, right);
        let low = if left == NOBODY { 0 } else { self.labels[left as usize] };
        let high = if right == NOBODY { u64::MAX } else { self.labels[right as usize] };
        let step = (high - low) / (moved.len() as u64 + 1);
        if step == 0 {
            self.label_all(head.0);
            return;
        }
        for (label, cluster) in (1..).map(|k| low + k * step).zip(moved) {
            self.labels[cluster.0 as usize] = label;
        }
    }

    /// Spreads labels evenly over the list that a cluster is in.
    fn label_all(&mut self, mut at: u32) {
        while self.links[at as usize].previous != NOBODY {
            at = self.links[at as usize].previous;
        }
        let step = u64::MAX / (self.links.len() as u64 + 1);
        let mut label = 0;
        while at != NOBODY {
            label += step;
            self.labels[at as usize] = label;
            at = self.links[at as usize].next;
        }
    }

    /// All clusters in topological order.
    pub fn sorted(&self) -> Vec<ClusterId> {
        let is_live = |(cluster, step): &(ClusterId, &StepId)| self.cluster_of(**step) == *cluster;
        let mut live: Vec<ClusterId> =
            (0..).map(ClusterId).zip(&self.some_step).filter(is_live).map(|(cluster, _)| cluster).collect();
        live.sort_unstable_by_key(|c| self.position(*c));
        live
    }

    /// Whether every edge leads forward; for tests and debug builds.
    pub fn is_topological(&self) -> bool {
        self.graph.after.iter().enumerate().all(|(k, later)| {
            let from = self.of_step[k];
            later.iter().all(|step| {
                let to = self.cluster_of(*step);
                from == to || self.position(from) < self.position(to)
            })
        })
    }
}

/// A list with one entry for each step, and room for one for each merge.
pub fn with_room<T>(entries: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut list = Vec::with_capacity(2 * entries.len());
    list.extend(entries);
    list
}

/// Joins two lists; the shorter one moves.
fn joined(mut long: Steps, mut short: Steps) -> Steps {
    if short.len() > long.len() {
        std::mem::swap(&mut long, &mut short);
    }
    long.append(&mut short);
    long
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Direction {
    After,
    Before,
}

/// What a merge does to the order.
pub struct MergePlan {
    first: ClusterId,
    second: ClusterId,
    /// Which search ended: the clusters that move are those behind the first or those ahead of the second.
    direction: Direction,
    /// In their order.
    moved: Vec<ClusterId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(count: usize, edges: &[(usize, usize)]) -> StepGraph {
        let mut graph = StepGraph {
            before: vec![SmallVec::new(); count],
            after: vec![SmallVec::new(); count],
            users: Vec::new(),
            externs: Vec::new(),
        };
        for (a, b) in edges {
            let (a, b) = (a % count, b % count);
            if a != b {
                graph.add(StepId(a.min(b) as u32), StepId(a.max(b) as u32));
            }
        }
        graph
    }

    /// Whether a path from one cluster to another leads through a third.
    fn has_detour(order: &Order, from: ClusterId, to: ClusterId) -> bool {
        let mut open = vec![from];
        let mut met = vec![from];
        while let Some(cluster) = open.pop() {
            let own = (0..order.of_step.len()).filter(|step| order.of_step[*step] == cluster);
            for step in own {
                for later in &order.graph.after[step] {
                    let next = order.cluster_of(*later);
                    if next == to && cluster != from {
                        return true;
                    }
                    if next != to && !met.contains(&next) {
                        met.push(next);
                        open.push(next);
                    }
                }
            }
        }
        false
    }

    proptest! {
        #[test]
        fn merging_refuses_just_the_pairs_with_something_between_and_keeps_the_order(
            edges in prop::collection::vec((0usize..24, 0usize..24), 0..50),
            picks in prop::collection::vec((0usize..100, 0usize..100), 1..40),
        ) {
            let graph = graph(24, &edges);
            let mut order = Order::new(&graph);
            for (a, b) in picks {
                let live = order.sorted();
                let (a, b) = (live[a % live.len()], live[b % live.len()]);
                if a == b {
                    continue;
                }
                let between = has_detour(&order, a, b) || has_detour(&order, b, a);
                match order.plan_merge(a, b, 0) {
                    Ok(plan) => {
                        prop_assert!(!between);
                        order.merge(plan);
                    }
                    Err(why) => prop_assert!(between && why == Unmergeable::Cycle),
                }
                prop_assert!(order.is_topological());
                prop_assert_eq!(order.sorted().len(), live.len() - usize::from(!between));
            }
        }
    }

    #[test]
    fn labels_never_run_out() {
        // Step 0 leads to all others, which are put behind each new end in turn.
        let count = 200;
        let edges: Vec<(usize, usize)> = (1..count).map(|k| (0, k)).collect();
        let graph = graph(count, &edges);
        let mut order = Order::new(&graph);
        order.labels.iter_mut().zip(0..).for_each(|(label, k)| *label = k);
        let mut first = ClusterId(0);
        for last in (100..count as u32).rev() {
            let plan = order.plan_merge(first, ClusterId(last), 0).unwrap_or_else(|why| panic!("{why:?}"));
            first = order.merge(plan);
            assert!(order.is_topological());
        }
    }
}
