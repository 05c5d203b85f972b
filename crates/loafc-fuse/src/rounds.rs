//! The scheduler's run: regular rounds to their fixpoint, then the final round to its own.
//!
//! Candidate pairs come from an index by buffer and wait in a priority queue. After a fusion only pairs with the
//! new cluster are looked at, so a round never scans the program again. A fusion found in the final round may
//! open regular ones, which then go first.

use loafc_ir::nest::StepId;
use loafc_ir::random_program::Random;
use rustc_hash::FxHashMap;

use crate::cluster::{BufferUse, Cluster};
use crate::cost::{Facts, cluster_bytes, set_repeated, within_limits, worth_a_look};
use crate::log::{DecisionLog, Fusion, Method, Reason, Record, Round};
use crate::options::{NEAR, NEIGHBOURS, READERS};
use crate::order::{ClusterId, Order, StepGraph, Unmergeable, with_room};
use crate::pair::Pair;
use crate::queue::{Candidate, Queue};
use crate::transforms::natural::Natural;
use crate::transforms::{FINAL_ROUND, Proposal, Transform, more_telling};

/// Everything that a run changes.
pub struct Scheduler<'a> {
    facts: &'a Facts<'a>,
    graph: &'a StepGraph,
    order: Order<'a>,
    /// Clusters by number; `None` for extern calls and for those that went into another.
    clusters: Vec<Option<Cluster>>,
    /// Which clusters are still there.
    alive: Vec<bool>,
    /// Number of clusters when pairs with merged ones were last taken out of the queues.
    swept_at: usize,
    /// Pairs of live clusters that had their turn and were not fused, once the final round runs: it knows other ways
    /// for some.
    refused: FxHashMap<(ClusterId, ClusterId), Reason>,
    /// Kept between calls for its memory.
    partners: Vec<ClusterId>,
    in_final_round: bool,
    regular: Queue,
    final_round: Queue,
    /// State of the random order, if one is asked for.
    chaos: Option<Random>,
    fusions: usize,
    /// Memory traffic of all clusters.
    bytes: i64,
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
    /// Every nest a cluster of its own; a step that is none has no cluster. The log has what they move apart.
    pub fn new(
        facts: &'a Facts<'a>,
        graph: &'a StepGraph,
        clusters: Vec<Option<Cluster>>,
        log: DecisionLog,
    ) -> Self {
        Scheduler {
            facts,
            graph,
            order: Order::new(graph),
            alive: with_room(clusters.iter().map(Option::is_some)),
            swept_at: clusters.len(),
            clusters,
            refused: FxHashMap::default(),
            partners: Vec::new(),
            in_final_round: false,
            regular: Queue::default(),
            final_round: Queue::default(),
            chaos: facts.options.fusion_chaos_seed.map(Random),
            fusions: 0,
            bytes: log.bytes,
            log,
        }
    }

    /// Runs all rounds.
    pub fn run(mut self) -> Outcome {
        let start: Vec<Candidate> =
            self.neighbours().into_iter().filter_map(|(a, b)| self.regular_candidate(a, b)).collect();
        self.regular.start(start);
        self.drain_regular();
        self.log.bytes_before_final_round = self.bytes;
        let nests = self.facts.program.steps.len() - self.log.extern_calls;
        self.log.kernels_before_final_round = nests - self.fusions;
        if self.facts.options.loop_ordering_after_fusion {
            self.run_final_round();
        }
        self.log.bytes = self.bytes;
        debug_assert_eq!(self.bytes, self.clusters.iter().flatten().map(cluster_bytes).sum::<i64>());
        Outcome { sequence: self.order.sorted(), clusters: self.clusters, log: self.log }
    }

    fn run_final_round(&mut self) {
        self.in_final_round = true;
        self.recall_refusals();
        let start: Vec<Candidate> =
            self.neighbours().into_iter().filter_map(|(a, b)| self.final_candidate(a, b)).collect();
        self.final_round.start(start);
        while let Some(candidate) = self.final_round.pop() {
            if self.take(candidate, Round::Final) {
                self.drain_regular();
            }
        }
    }

    /// Finds pairs of live clusters that the regular rounds refused.
    fn recall_refusals(&mut self) {
        for record in &self.log.records {
            let pair = (ClusterId(record.first), ClusterId(record.second));
            if self.alive[pair.0.0 as usize] && self.alive[pair.1.0 as usize] {
                self.refused.insert(pair, record.reason.clone());
            }
        }
    }

    fn refuse(&mut self, first: ClusterId, second: ClusterId, reason: Reason) {
        if self.in_final_round {
            self.refused.insert((first, second), reason);
        }
    }

    fn drain_regular(&mut self) {
        while let Some(candidate) = self.regular.pop() {
            self.take(candidate, Round::Regular);
        }
    }

    fn are_alive(&self, candidate: &Candidate) -> bool {
        both_alive(&self.alive, candidate)
    }

    /// Takes pairs with merged clusters out of the queues whenever their number may have grown by half of them.
    fn sweep(&mut self) {
        let merged = self.clusters.len() - self.swept_at;
        let live = self.clusters.len() - 2 * self.fusions;
        if 4 * merged < live {
            return;
        }
        self.swept_at = self.clusters.len();
        let alive = &self.alive;
        self.regular.retain(|candidate| both_alive(alive, candidate));
        self.final_round.retain(|candidate| both_alive(alive, candidate));
    }

    fn live(&self, cluster: ClusterId) -> Option<&Cluster> {
        self.clusters[cluster.0 as usize].as_ref()
    }

    /// All pairs of live clusters that are near each other, each once, the one that runs first in front.
    fn neighbours(&self) -> Vec<(ClusterId, ClusterId)> {
        let mut pairs: Vec<u64> = Vec::with_capacity(4 * self.clusters.len());
        let mut partners = Vec::new();
        for k in 0..self.clusters.len() as u32 {
            self.collect_neighbours(ClusterId(k), &mut partners);
            pairs.extend(partners.drain(..).map(|partner| {
                let (first, second) = self.in_order(ClusterId(k), partner);
                (u64::from(first.0) << 32) | u64::from(second.0)
            }));
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs.into_iter().map(|pair| (ClusterId((pair >> 32) as u32), ClusterId(pair as u32))).collect()
    }

    fn in_order(&self, a: ClusterId, b: ClusterId) -> (ClusterId, ClusterId) {
        if self.order.position(a) < self.order.position(b) { (a, b) } else { (b, a) }
    }

    /// The nearest users of each of a cluster's buffers.
    fn collect_neighbours(&self, cluster: ClusterId, partners: &mut Vec<ClusterId>) {
        let Some(own) = self.live(cluster) else { return };
        for entry in &own.buffers {
            // What nobody else touches brings no partner.
            if !self.facts.is_internal(entry.buffer, entry.steps) {
                self.collect_partners(cluster, own, entry, partners);
            }
        }
        partners.sort_unstable();
        partners.dedup();
    }

    /// Looks at the pairs of a new cluster.
    fn consider(&mut self, cluster: ClusterId) {
        let mut partners = std::mem::take(&mut self.partners);
        self.collect_neighbours(cluster, &mut partners);
        for partner in partners.drain(..) {
            let (first, second) = self.in_order(cluster, partner);
            if let Some(candidate) = self.regular_candidate(first, second) {
                self.regular.push(candidate);
            }
        }
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
        let near = own.first_step;
        let middle = users.partition_point(|s| *s < near);
        let mut add = |steps: &mut dyn Iterator<Item = &StepId>, most: usize| {
            let (mut found, mut last) = (0, cluster);
            for step in steps {
                let partner = self.order.cluster_of(*step);
                if partner == last || partner == cluster || !self.alive[partner.0 as usize] {
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

    /// A pair for the regular rounds, unless it is refused at once.
    fn regular_candidate(&mut self, first: ClusterId, second: ClusterId) -> Option<Candidate> {
        let (x, y) = (self.live(first)?, self.live(second)?);
        match within_limits(self.facts, x, y).and_then(|()| bound(self.facts, x, y)) {
            Ok(bound) => self.candidate(first, second, bound),
            Err(reason) => {
                self.refuse_natural(first, second, reason);
                None
            }
        }
    }

    /// A pair for the final round, unless it has no chance there either.
    fn final_candidate(&mut self, first: ClusterId, second: ClusterId) -> Option<Candidate> {
        let (x, y) = (self.live(first)?, self.live(second)?);
        let limits = match self.refused.get(&(first, second)) {
            Some(reason) if holds_for_all_loops(reason) => return None,
            Some(_) => Ok(()),
            None => within_limits(self.facts, x, y),
        };
        match limits.and_then(|()| bound(self.facts, x, y)) {
            Ok(bound) => self.candidate(first, second, bound),
            Err(reason) => {
                self.record_refusal(Round::Final, first, second, reason);
                None
            }
        }
    }

    fn candidate(&mut self, first: ClusterId, second: ClusterId, bound: i64) -> Option<Candidate> {
        let steps = [self.live(first)?.first_step, self.live(second)?.first_step];
        let priority = match &mut self.chaos {
            Some(random) => random.bits(),
            None => bound.max(0) as u64,
        };
        Some(Candidate::new(priority, steps, first, second))
    }

    /// Notes that the natural alignment of a pair was refused; once the final round runs, it is next to try.
    fn refuse_natural(&mut self, first: ClusterId, second: ClusterId, reason: Reason) {
        self.refuse(first, second, reason.clone());
        self.record_refusal(Round::Regular, first, second, reason);
        if self.in_final_round
            && let Some(candidate) = self.final_candidate(first, second)
        {
            self.final_round.push(candidate);
        }
    }

    fn queue(&mut self, round: Round) -> &mut Queue {
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
    fn score(&mut self, mut candidate: Candidate, round: Round) -> Option<(Candidate, Box<Proposal>)> {
        if let Some(proposal) = candidate.proposal.take() {
            return Some((candidate, proposal));
        }
        let (first, second) = (candidate.first, candidate.second);
        let found = {
            let pair = Pair::new(self.facts, self.live(first)?, self.live(second)?);
            match round {
                Round::Regular => Natural.propose(self.facts, &pair),
                Round::Final => {
                    let natural = self.refused.get(&(first, second)).cloned();
                    self.best_transform(&pair, natural.unwrap_or(Reason::NoCommonSpace))
                }
            }
        };
        let proposal = match found {
            Ok(proposal) => Box::new(proposal),
            Err(reason) if round == Round::Regular => {
                self.refuse_natural(first, second, reason);
                return None;
            }
            Err(reason) => {
                self.record_refusal(round, first, second, reason);
                return None;
            }
        };
        if self.chaos.is_none() {
            candidate.set_priority(proposal.score.saved.max(0) as u64);
        }
        let queue = self.queue(round);
        if queue.peek().is_some_and(|next| *next > candidate) {
            candidate.proposal = Some(proposal);
            queue.push(candidate);
            return None;
        }
        Some((candidate, proposal))
    }

    /// The best of all ways of the final round; the first one that saves all that two clusters could is enough.
    fn best_transform(&self, pair: &Pair, natural: Reason) -> Result<Proposal, Reason> {
        let mut best: Option<Proposal> = None;
        let mut refusal = natural;
        for transform in FINAL_ROUND {
            match transform.propose(self.facts, pair) {
                Ok(found) if best.as_ref().is_none_or(|b| found.score.saved > b.score.saved) => {
                    if found.score.saved >= pair.most_saved {
                        debug_assert!(self.is_best(pair, &found), "a search ended too early");
                        return Ok(found);
                    }
                    best = Some(found);
                }
                Ok(_) => {}
                Err(reason) => refusal = more_telling(refusal, reason),
            }
        }
        best.ok_or(refusal)
    }

    /// Whether no other way saves more; for debug builds.
    fn is_best(&self, pair: &Pair, found: &Proposal) -> bool {
        let others = FINAL_ROUND.iter().filter_map(|transform| transform.propose(self.facts, pair).ok());
        others.map(|other| other.score.saved).max() <= Some(found.score.saved)
    }

    /// Fuses a candidate if it still can be; whether it was.
    fn take(&mut self, candidate: Candidate, round: Round) -> bool {
        let (first, second) = (candidate.first, candidate.second);
        if !self.are_alive(&candidate) {
            // What nobody has scored yet was not looked at.
            if let Some(proposal) = candidate.proposal {
                self.log.records.push(record(round, (first, second), &proposal, Reason::Superseded));
            }
            return false;
        }
        // More pairs fail here than anywhere else, and finding out costs less than a score.
        let plan = match self.order.plan_merge(first, second, candidate.distance()) {
            Ok(plan) => plan,
            Err(why) => {
                let reason = match why {
                    Unmergeable::Cycle => Reason::Cycle,
                    Unmergeable::TooFar => Reason::TooFarApart,
                };
                self.refuse(first, second, reason.clone());
                match candidate.proposal {
                    Some(proposal) => {
                        self.log.records.push(record(round, (first, second), &proposal, reason))
                    }
                    None => self.record_refusal(round, first, second, reason),
                }
                return false;
            }
        };
        let Some((_, proposal)) = self.score(candidate, round) else { return false };
        let score = &proposal.score;
        if self.facts.options.stop_after_fusion.is_some_and(|n| self.fusions >= n) {
            self.log.records.push(record(round, (first, second), &proposal, Reason::Stopped));
            self.refuse(first, second, Reason::Stopped);
            return false;
        }
        let merged = self.order.merge(plan);
        let take = |clusters: &mut Vec<Option<Cluster>>, id: ClusterId| {
            clusters[id.0 as usize].take().expect("checked to be live")
        };
        let mut x = take(&mut self.clusters, first);
        let mut y = take(&mut self.clusters, second);
        x.respace(&proposal.alignment.first);
        y.respace(&proposal.alignment.second);
        let mut union = if x.first_step < y.first_step { x.union(y) } else { y.union(x) };
        for changed in &score.traffic {
            union.set_bytes(changed.buffer, changed.after);
            self.bytes += changed.after - changed.before;
        }
        set_repeated(self.facts, &mut union);
        debug_assert_eq!(self.clusters.len(), merged.0 as usize);
        self.clusters.push(Some(union));
        self.alive[first.0 as usize] = false;
        self.alive[second.0 as usize] = false;
        self.alive.push(true);
        self.fusions += 1;
        self.sweep();
        self.log.clusters.fusions.push(Fusion { first: first.0, second: second.0 });
        let reason = Reason::Fused { saved: score.saved };
        self.log
            .records
            .push(Record { merged: Some(merged.0), ..record(round, (first, second), &proposal, reason) });
        debug_assert!(self.facts.program.steps.len() > 200 || self.order.is_topological());
        self.consider(merged);
        true
    }
}

fn both_alive(alive: &[bool], candidate: &Candidate) -> bool {
    alive[candidate.first.0 as usize] && alive[candidate.second.0 as usize]
}

/// Whether a pair that was refused for this can't be fused whatever its loops are.
fn holds_for_all_loops(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Cycle
            | Reason::TooFarApart
            | Reason::Stopped
            | Reason::GroupTooLarge
            | Reason::TooManyBuffers
            | Reason::BelowThreshold { .. }
    )
}

/// What a fusion could save at most, if that is worth a look.
fn bound(facts: &Facts, first: &Cluster, second: &Cluster) -> Result<i64, Reason> {
    let pair = Pair::new(facts, first, second);
    worth_a_look(facts, &pair).map(|()| pair.most_saved)
}

/// What the log says of a pair that has a score.
fn record(round: Round, pair: (ClusterId, ClusterId), proposal: &Proposal, reason: Reason) -> Record {
    let saved = proposal.score.saved;
    Record {
        round,
        method: proposal.method,
        first: pair.0.0,
        second: pair.1.0,
        merged: None,
        natural_score: if round == Round::Regular { saved } else { 0 },
        score: saved,
        reorderings: proposal.score.reorderings,
        reason,
    }
}
