//! A topological order of clusters that is kept while they are merged, and the test whether merging two would
//! close a cycle. Both look only at what lies between the two in the order.

use loafc_ir::nest::{BufferId, NestProgram, Op, Step, StepId};
use smallvec::SmallVec;

use crate::options::MAX_PATH_SEARCH;

/// A cluster during scheduling; ids are never used twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub u32);

/// Which steps must run before which, in program order.
pub struct StepGraph {
    /// For each step, earlier steps that it needs, each once.
    pub before: Vec<SmallVec<[StepId; 4]>>,
    /// For each step, later steps that need it, each once.
    pub after: Vec<SmallVec<[StepId; 4]>>,
    /// For each buffer, the steps that touch it, in order.
    pub users: Vec<Vec<StepId>>,
}

#[derive(Default, Clone)]
struct BufferState {
    writer: Option<StepId>,
    readers: SmallVec<[StepId; 4]>,
}

impl StepGraph {
    /// Memory dependencies (a reader after its writer, a writer after the last one) and weak ones (a writer after
    /// the readers of the old value); extern calls that must keep their order form a chain.
    pub fn new(program: &NestProgram) -> StepGraph {
        let count = program.steps.len();
        let mut graph = StepGraph {
            before: vec![SmallVec::new(); count],
            after: vec![SmallVec::new(); count],
            users: vec![Vec::new(); program.buffers.len()],
        };
        let mut state = vec![BufferState::default(); program.buffers.len()];
        let mut last_ordered = None;
        for (k, step) in program.steps.iter().enumerate() {
            let id = StepId(k as u32);
            let (reads, writes) = touched(step);
            for buffer in reads.iter().chain(&writes) {
                let users = &mut graph.users[buffer.0 as usize];
                if users.last() != Some(&id) {
                    users.push(id);
                }
            }
            for buffer in &reads {
                if let Some(writer) = state[buffer.0 as usize].writer {
                    graph.add(writer, id);
                }
            }
            for buffer in &writes {
                let old = &mut state[buffer.0 as usize];
                let readers = std::mem::take(&mut old.readers);
                let writer = old.writer.replace(id);
                for earlier in readers.into_iter().chain(writer) {
                    graph.add(earlier, id);
                }
            }
            for buffer in &reads {
                if state[buffer.0 as usize].writer != Some(id) {
                    state[buffer.0 as usize].readers.push(id);
                }
            }
            if matches!(step, Step::Extern(call) if call.ordered)
                && let Some(earlier) = last_ordered.replace(id)
            {
                graph.add(earlier, id);
            }
        }
        graph
    }

    /// All dependencies as pairs of steps, the earlier one first.
    pub fn edges(&self) -> Vec<(u32, u32)> {
        let from = |(k, before): (usize, &SmallVec<[StepId; 4]>)| {
            before.iter().map(move |b| (b.0, k as u32)).collect::<SmallVec<[(u32, u32); 4]>>()
        };
        self.before.iter().enumerate().flat_map(from).collect()
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
pub fn touched(step: &Step) -> (SmallVec<[BufferId; 8]>, SmallVec<[BufferId; 4]>) {
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
    /// Steps of each cluster; empty for those merged into another.
    steps: Vec<Vec<StepId>>,
    /// Position of each cluster; edges lead from smaller to larger ones.
    position: Vec<u32>,
    /// Marks of the search under way, so that none has to be cleared.
    visited: Vec<u32>,
    search: u32,
}

/// Why two clusters can't be merged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unmergeable {
    /// Something that must run between them.
    Cycle,
    /// Too much lies between them to find out.
    TooFar,
}

impl<'a> Order<'a> {
    /// Each step a cluster of its own, in program order.
    pub fn new(graph: &'a StepGraph) -> Self {
        let count = graph.before.len();
        Order {
            graph,
            of_step: (0..count as u32).map(ClusterId).collect(),
            steps: (0..count as u32).map(|k| vec![StepId(k)]).collect(),
            position: (0..count as u32).collect(),
            visited: vec![0; count],
            search: 0,
        }
    }

    /// The cluster that a step is in.
    pub fn cluster_of(&self, step: StepId) -> ClusterId {
        self.of_step[step.0 as usize]
    }

    /// Place in the topological order.
    pub fn position(&self, cluster: ClusterId) -> u32 {
        self.position[cluster.0 as usize]
    }

    /// Whether merging two would leave nothing between them; on success, what must move for it.
    pub fn plan_merge(&mut self, a: ClusterId, b: ClusterId) -> Result<MergePlan, Unmergeable> {
        let (first, second) = if self.position(a) < self.position(b) { (a, b) } else { (b, a) };
        let after = self.reach(first, second, Direction::After)?;
        let before = self.reach(second, first, Direction::Before)?;
        Ok(MergePlan { first, second, after, before })
    }

    /// Everything strictly between `from` and `to` in the order that `from` leads to. Meeting `to` on a path
    /// through something else is a cycle.
    fn reach(
        &mut self,
        from: ClusterId,
        to: ClusterId,
        direction: Direction,
    ) -> Result<Vec<ClusterId>, Unmergeable> {
        self.search += 1;
        let limit = self.position(to);
        let beyond = |p: u32| match direction {
            Direction::After => p > limit,
            Direction::Before => p < limit,
        };
        let mut found = Vec::new();
        let mut next = 0;
        let mut current = from;
        loop {
            for k in 0..self.steps[current.0 as usize].len() {
                let step = self.steps[current.0 as usize][k];
                let neighbours = match direction {
                    Direction::After => &self.graph.after[step.0 as usize],
                    Direction::Before => &self.graph.before[step.0 as usize],
                };
                for neighbour in neighbours {
                    let cluster = self.of_step[neighbour.0 as usize];
                    if cluster == current || cluster == from || beyond(self.position[cluster.0 as usize]) {
                        continue;
                    }
                    if cluster == to {
                        if current != from {
                            return Err(Unmergeable::Cycle);
                        }
                        continue;
                    }
                    if self.visited[cluster.0 as usize] != self.search {
                        self.visited[cluster.0 as usize] = self.search;
                        found.push(cluster);
                    }
                }
            }
            if found.len() > MAX_PATH_SEARCH {
                return Err(Unmergeable::TooFar);
            }
            let Some(cluster) = found.get(next) else { return Ok(found) };
            current = *cluster;
            next += 1;
        }
    }

    /// Merges two into a new cluster and mends the order.
    pub fn merge(&mut self, plan: MergePlan) -> ClusterId {
        let merged = ClusterId(self.steps.len() as u32);
        let by_position = |order: &Self, list: &mut Vec<ClusterId>| {
            list.sort_by_key(|c| order.position(*c));
        };
        let (mut before, mut after) = (plan.before, plan.after);
        by_position(self, &mut before);
        by_position(self, &mut after);
        let mut places: Vec<u32> = before
            .iter()
            .chain(&after)
            .chain(&[plan.first, plan.second])
            .map(|c| self.position(*c))
            .collect();
        places.sort_unstable();

        let mut steps = std::mem::take(&mut self.steps[plan.first.0 as usize]);
        steps.append(&mut self.steps[plan.second.0 as usize]);
        for step in &steps {
            self.of_step[step.0 as usize] = merged;
        }
        self.steps.push(steps);
        self.visited.push(0);
        self.position.push(0);
        // What the two need comes first, then they, then what needs them; one place stays empty.
        for (cluster, place) in before.into_iter().chain([merged]).chain(after).zip(places) {
            self.position[cluster.0 as usize] = place;
        }
        merged
    }

    /// All clusters in topological order.
    pub fn sorted(&self) -> Vec<ClusterId> {
        let mut live: Vec<ClusterId> = (0..self.steps.len() as u32)
            .map(ClusterId)
            .filter(|c| !self.steps[c.0 as usize].is_empty())
            .collect();
        live.sort_by_key(|c| self.position(*c));
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

#[derive(Copy, Clone)]
enum Direction {
    After,
    Before,
}

/// What a merge does to the order.
pub struct MergePlan {
    first: ClusterId,
    second: ClusterId,
    /// Between the two, and needs the first.
    after: Vec<ClusterId>,
    /// Between the two, and needed by the second.
    before: Vec<ClusterId>,
}
