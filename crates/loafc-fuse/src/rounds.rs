//! The scheduler's run: regular rounds to their fixpoint, then the final round to its own.
//!
//! Candidate pairs come from an index by buffer and wait in a priority queue. After a fusion only pairs with the
//! new cluster are looked at, so a round never scans the program again. A fusion found in the final round may
//! open regular ones, which then go first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use loafc_ir::nest::{Step, StepId};
use loafc_ir::random_program::Random;
use rustc_hash::FxHashMap;

use crate::cluster::{BufferUse, Cluster};
use crate::cost::{Facts, changed_traffic, cluster_bytes, most_saved, set_nest_traffic, within_limits};
use crate::log::{ClusterOrigin, DecisionLog, Method, Reason, Record, Round};
use crate::options::{NEAR, NEIGHBOURS, READERS};
use crate::order::{ClusterId, Order, StepGraph, Unmergeable};
use crate::transforms::natural::Natural;
use crate::transforms::{FINAL_ROUND, Proposal, Transform, more_telling};

/// A pair waiting for its turn. The largest is taken first: most bytes saved, then closest in program order, then
/// smallest numbers.
///
/// Most pairs lose one side to another fusion before their turn. So a pair waits with a bound of what it could save,
/// and its score is computed when the bound comes up; if the score is less, it waits again. Fusions are made in the
/// order of their scores all the same.
#[derive(PartialEq, Eq)]
struct Candidate {
    priority: u64,
    distance: Reverse<u32>,
    first: Reverse<ClusterId>,
    second: Reverse<ClusterId>,
    /// `None` as long as the priority is a bound. Boxed because the queue moves candidates around.
    proposal: Option<Box<Proposal>>,
}

impl Candidate {
    fn key(&self) -> (u64, Reverse<u32>, Reverse<ClusterId>, Reverse<ClusterId>) {
        (self.priority, self.distance, self.first, self.second)
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// What came of a pair.
enum Seen {
    /// It went into a queue, or all ways were tried.
    Done,
    /// Its natural alignment was refused; the final round may know another way.
    Refused(Reason),
    /// The same, and the final round has it.
    InFinalRound(Reason),
}

/// Everything that a run changes.
pub struct Scheduler<'a> {
    facts: &'a Facts<'a>,
    graph: &'a StepGraph,
    order: Order<'a>,
    /// Clusters by number; `None` for extern calls and for those that went into another.
    clusters: Vec<Option<Cluster>>,
    /// Every pair that was looked at.
    seen: FxHashMap<(ClusterId, ClusterId), Seen>,
    /// Kept between calls for its memory.
    partners: Vec<ClusterId>,
    in_final_round: bool,
    regular: BinaryHeap<Candidate>,
    final_round: BinaryHeap<Candidate>,
    /// State of the random order, if one is asked for.
    chaos: Option<Random>,
    fusions: usize,
    log: DecisionLog,
}

/// What a run leaves behind.
pub struct Outcome {
    /// Clusters by number; `None` for extern calls and for those that went into another.
    pub clusters: Vec<Option<Cluster>>,
    /// Live clusters, extern calls among them, in the order in which they must run.
    pub sequence: Vec<ClusterId>,
    /// What was decided; kernels are not in it yet.
    pub log: DecisionLog,
}

impl<'a> Scheduler<'a> {
    /// Every step a cluster of its own.
    pub fn new(facts: &'a Facts<'a>, graph: &'a StepGraph, log: DecisionLog) -> Self {
        let clusters = facts
            .program
            .steps
            .iter()
            .enumerate()
            .map(|(k, step)| match step {
                Step::Nest(nest) => {
                    let mut cluster = Cluster::of_nest(StepId(k as u32), nest, facts.program);
                    set_nest_traffic(facts, &mut cluster);
                    Some(cluster)
                }
                Step::Extern(_) => None,
            })
            .collect();
        Scheduler {
            facts,
            graph,
            order: Order::new(graph),
            clusters,
            seen: FxHashMap::default(),
            partners: Vec::new(),
            in_final_round: false,
            regular: BinaryHeap::new(),
            final_round: BinaryHeap::new(),
            chaos: facts.options.fusion_chaos_seed.map(Random),
            fusions: 0,
            log,
        }
    }

    /// Runs all rounds.
    pub fn run(mut self) -> Outcome {
        for (origin, cluster) in self.log.clusters.iter_mut().zip(&self.clusters) {
            if let (ClusterOrigin::Step { bytes, .. }, Some(cluster)) = (origin, cluster) {
                *bytes = cluster_bytes(cluster);
            }
        }
        for k in 0..self.clusters.len() {
            self.consider_neighbours(ClusterId(k as u32), Round::Regular);
        }
        self.drain_regular();
        self.log.bytes_before_final_round = self.live_bytes();
        self.log.kernels_before_final_round = self.clusters.iter().flatten().count();
        if self.facts.options.loop_ordering_after_fusion {
            self.run_final_round();
        }
        self.log.bytes = self.live_bytes();
        Outcome { sequence: self.order.sorted(), clusters: self.clusters, log: self.log }
    }

    fn live_bytes(&self) -> i64 {
        self.clusters.iter().flatten().map(cluster_bytes).sum()
    }

    fn run_final_round(&mut self) {
        self.in_final_round = true;
        for k in 0..self.clusters.len() {
            self.consider_neighbours(ClusterId(k as u32), Round::Final);
        }
        while let Some(candidate) = self.final_round.pop() {
            if self.take(candidate, Round::Final) {
                self.drain_regular();
            }
        }
    }

    fn drain_regular(&mut self) {
        while let Some(candidate) = self.regular.pop() {
            self.take(candidate, Round::Regular);
        }
    }

    fn live(&self, cluster: ClusterId) -> Option<&Cluster> {
        self.clusters[cluster.0 as usize].as_ref()
    }

    /// Looks at the pairs of a cluster with the nearest users of each of its buffers.
    fn consider_neighbours(&mut self, cluster: ClusterId, round: Round) {
        let mut partners = std::mem::take(&mut self.partners);
        let Some(own) = self.live(cluster) else { return };
        for entry in &own.buffers {
            // What nobody else touches brings no partner.
            if !self.facts.is_internal(entry.buffer, entry.steps) {
                self.collect_partners(cluster, own, entry, &mut partners);
            }
        }
        partners.sort_unstable();
        partners.dedup();
        for partner in &partners {
            self.consider(cluster, *partner, round);
        }
        partners.clear();
        self.partners = partners;
    }

    fn collect_partners(
        &self,
        cluster: ClusterId,
        own: &Cluster,
        entry: &BufferUse,
        partners: &mut Vec<ClusterId>,
    ) {
        let users = &self.graph.users[entry.buffer.0 as usize];
        let near = own.first_step();
        let middle = users.partition_point(|s| *s < near);
        let mut add = |steps: &mut dyn Iterator<Item = &StepId>, most: usize| {
            let (mut found, mut last) = (0, cluster);
            for step in steps {
                let partner = self.order.cluster_of(*step);
                if partner == last || partner == cluster || self.live(partner).is_none() {
                    continue;
                }
                partners.push(partner);
                last = partner;
                found += 1;
                if found == most {
                    return;
                }
            }
        };
        if entry.written {
            add(&mut users[..middle].iter().rev(), READERS);
            add(&mut users[middle..].iter(), READERS);
            return;
        }
        let is_near = |s: &&StepId| s.0.abs_diff(near.0) <= NEAR;
        add(&mut users[..middle].iter().rev().take_while(is_near), NEIGHBOURS);
        add(&mut users[middle..].iter().take_while(is_near), NEIGHBOURS);
        // The first user makes the buffer, if anybody here does.
        add(&mut users.iter().take(1), 1);
    }

    fn consider(&mut self, a: ClusterId, b: ClusterId, round: Round) {
        let (first, second) = if self.order.position(a) < self.order.position(b) { (a, b) } else { (b, a) };
        let seen = self.seen.get(&(first, second));
        match (round, seen) {
            (Round::Regular, Some(_)) => return,
            // Waits in a queue, was refused for its place in the program, or had its turn.
            (Round::Final, Some(Seen::Done | Seen::InFinalRound(_))) => return,
            _ => {}
        }
        let (Some(x), Some(y)) = (self.live(first), self.live(second)) else { return };
        let distance = x.first_step().0.abs_diff(y.first_step().0);
        let natural_refusal = match (round, seen) {
            (Round::Final, Some(Seen::Refused(reason))) => Some(reason.clone()),
            _ => None,
        };
        let limits = match &natural_refusal {
            Some(Reason::GroupTooLarge | Reason::TooManyBuffers | Reason::BelowThreshold { .. }) => return,
            Some(_) => Ok(()),
            None => within_limits(self.facts, x, y),
        };
        let bound = limits.and_then(|()| most_saved(self.facts, x, y));
        match bound {
            Ok(bound) => {
                self.seen.insert((first, second), natural_refusal.map_or(Seen::Done, Seen::InFinalRound));
                let candidate = Candidate {
                    priority: self.priority(bound),
                    distance: Reverse(distance),
                    first: Reverse(first),
                    second: Reverse(second),
                    proposal: None,
                };
                self.queue(round).push(candidate);
            }
            Err(reason) => {
                self.seen.insert((first, second), Seen::Refused(reason.clone()));
                self.record_refusal(round, first, second, reason);
            }
        }
    }

    fn queue(&mut self, round: Round) -> &mut BinaryHeap<Candidate> {
        match round {
            Round::Regular => &mut self.regular,
            Round::Final => &mut self.final_round,
        }
    }

    fn record_refusal(&mut self, round: Round, first: ClusterId, second: ClusterId, reason: Reason) {
        let method = if round == Round::Regular { Method::Natural } else { Method::Reorder };
        self.log.records.push(Record {
            round,
            method,
            first: first.0,
            second: second.0,
            merged: None,
            natural_score: 0,
            score: 0,
            reorderings: 0,
            reason,
        });
    }

    /// Computes the score of a candidate that has waited with a bound. It comes back if nothing that waits could be
    /// worth more; otherwise it waits again, or is refused.
    fn score(&mut self, mut candidate: Candidate, round: Round) -> Option<Candidate> {
        if candidate.proposal.is_some() {
            return Some(candidate);
        }
        let (Reverse(first), Reverse(second)) = (candidate.first, candidate.second);
        let (Some(x), Some(y)) = (self.live(first), self.live(second)) else { return Some(candidate) };
        let found = match round {
            Round::Regular => Natural.propose(self.facts, x, y),
            Round::Final => {
                let natural = match self.seen.get(&(first, second)) {
                    Some(Seen::InFinalRound(reason)) => reason.clone(),
                    _ => Reason::NoCommonSpace,
                };
                self.best_transform(x, y, natural)
            }
        };
        match found {
            Ok(proposal) => {
                let saved = proposal.score.saved;
                candidate.proposal = Some(Box::new(proposal));
                if self.chaos.is_none() {
                    candidate.priority = saved.max(0) as u64;
                }
                let queue = self.queue(round);
                if queue.peek().is_some_and(|next| *next > candidate) {
                    queue.push(candidate);
                    return None;
                }
                Some(candidate)
            }
            Err(reason) => {
                if round == Round::Regular {
                    self.seen.insert((first, second), Seen::Refused(reason.clone()));
                }
                self.record_refusal(round, first, second, reason);
                if round == Round::Regular && self.in_final_round {
                    self.consider(first, second, Round::Final);
                }
                None
            }
        }
    }

    fn best_transform(&self, x: &Cluster, y: &Cluster, natural: Reason) -> Result<Proposal, Reason> {
        let mut best: Option<Proposal> = None;
        let mut refusal = natural;
        for transform in FINAL_ROUND {
            match transform.propose(self.facts, x, y) {
                Ok(found) if best.as_ref().is_none_or(|b| found.score.saved > b.score.saved) => {
                    best = Some(found);
                }
                Ok(_) => {}
                Err(reason) => refusal = more_telling(refusal, reason),
            }
        }
        best.ok_or(refusal)
    }

    fn priority(&mut self, saved: i64) -> u64 {
        match &mut self.chaos {
            Some(random) => random.bits(),
            None => saved.max(0) as u64,
        }
    }

    /// Fuses a candidate if it still can be; whether it was.
    fn take(&mut self, candidate: Candidate, round: Round) -> bool {
        let Some(candidate) = self.score(candidate, round) else { return false };
        let (Reverse(first), Reverse(second)) = (candidate.first, candidate.second);
        // What nobody has scored yet was not looked at.
        let Some(proposal) = candidate.proposal else { return false };
        let score = proposal.score;
        let mut record = Record {
            round,
            method: proposal.method,
            first: first.0,
            second: second.0,
            merged: None,
            natural_score: if round == Round::Regular { score.saved } else { 0 },
            score: score.saved,
            reorderings: score.reorderings,
            reason: Reason::Superseded,
        };
        if self.live(first).is_none() || self.live(second).is_none() {
            self.log.records.push(record);
            return false;
        }
        if self.facts.options.stop_after_fusion.is_some_and(|n| self.fusions >= n) {
            record.reason = Reason::Stopped;
            self.log.records.push(record);
            return false;
        }
        let plan = match self.order.plan_merge(first, second) {
            Ok(plan) => plan,
            Err(why) => {
                record.reason = match why {
                    Unmergeable::Cycle => Reason::Cycle,
                    Unmergeable::TooFar => Reason::TooFarApart,
                };
                self.log.records.push(record);
                return false;
            }
        };
        let merged = self.order.merge(plan);
        let take = |clusters: &mut Vec<Option<Cluster>>, id: ClusterId| {
            clusters[id.0 as usize].take().expect("checked to be live")
        };
        let mut x = take(&mut self.clusters, first);
        let mut y = take(&mut self.clusters, second);
        let traffic = changed_traffic(self.facts, &x, &y, &proposal.alignment);
        x.respace(&proposal.alignment.first);
        y.respace(&proposal.alignment.second);
        let mut union = if x.first_step() < y.first_step() { x.union(y) } else { y.union(x) };
        for changed in traffic {
            union.set_bytes(changed.buffer, changed.after);
        }
        debug_assert_eq!(self.clusters.len(), merged.0 as usize);
        self.clusters.push(Some(union));
        self.fusions += 1;
        self.log.clusters.push(ClusterOrigin::Fused { first: first.0, second: second.0 });
        record.merged = Some(merged.0);
        record.reason = Reason::Fused { saved: record.score };
        self.log.records.push(record);
        debug_assert!(self.facts.program.steps.len() > 200 || self.order.is_topological());
        self.consider_neighbours(merged, Round::Regular);
        if self.in_final_round {
            self.consider_neighbours(merged, Round::Final);
        }
        true
    }
}
