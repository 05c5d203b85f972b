//! What the lowering must know about a program before it starts: which calls matter, how often values are used,
//! which must be in memory.

use loafc_ir::graph::{Arg, Graph, Node, TensorId};

use crate::realize::Demand;
use crate::table::{self, Kind};

/// Facts about the values and calls of a program.
pub(crate) struct Facts {
    /// Use of each value.
    pub demand: Vec<Demand>,
    /// Position of the last call that names each value; `usize::MAX` for outputs.
    pub last_use: Vec<usize>,
    /// Whether each call is needed for an output or an effect.
    pub live: Vec<bool>,
    /// Whether any call writes to a tensor.
    pub writes: bool,
}

impl Facts {
    pub(crate) fn of(graph: &Graph) -> Facts {
        let n = graph.values.len();
        let mut facts = Facts {
            demand: vec![Demand { users: 0, needs_buffer: false }; n],
            last_use: vec![0; n],
            live: vec![false; graph.nodes.len()],
            writes: graph.nodes.iter().any(|node| !written(node).is_empty()),
        };
        for output in &graph.outputs {
            for_each_value(output, &mut |id| {
                let demand = &mut facts.demand[id.0 as usize];
                demand.users += 1;
                demand.needs_buffer = true;
                facts.last_use[id.0 as usize] = usize::MAX;
            });
        }
        for (at, node) in graph.nodes.iter().enumerate().rev() {
            facts.visit(at, node);
        }
        facts
    }

    fn visit(&mut self, at: usize, node: &Node) {
        let used = |id: &TensorId| self.demand[id.0 as usize].users > 0;
        if !has_effect(&node.op) && written(node).is_empty() && !node.results.iter().flatten().any(used) {
            return;
        }
        self.live[at] = true;
        let kind = table::find(&node.op).map(|entry| entry.kind);
        // Who reads a view reads what it views.
        let through: Option<Demand> = (kind == Some(Kind::View)).then(|| {
            let results = || node.results.iter().flatten().map(|id| self.demand[id.0 as usize]);
            Demand {
                users: results().map(|d| d.users).sum(),
                needs_buffer: results().any(|d| d.needs_buffer),
            }
        });
        for_each_argument(node, &mut |id| {
            let k = id.0 as usize;
            self.last_use[k] = self.last_use[k].max(at);
            let demand = &mut self.demand[k];
            match through {
                Some(through) => {
                    demand.users += through.users.max(1);
                    demand.needs_buffer |= through.needs_buffer;
                }
                None => {
                    demand.users += 1;
                    demand.needs_buffer |= kind.is_none_or(|k| k == Kind::Buffers);
                }
            }
        });
    }
}

/// Calls `visit` for every value among the arguments of a call.
pub(crate) fn for_each_argument(node: &Node, visit: &mut dyn FnMut(TensorId)) {
    for arg in node.args.iter().chain(node.kwargs.iter().map(|k| &k.1)) {
        for_each_value(arg, visit);
    }
}

fn for_each_value(arg: &Arg, visit: &mut dyn FnMut(TensorId)) {
    match arg {
        Arg::Value(id) => visit(*id),
        Arg::List(items) => items.iter().for_each(|a| for_each_value(a, visit)),
        _ => {}
    }
}

/// The tensors that a call writes to: its first argument if its name says so, and what is given as `out`.
pub(crate) fn written(node: &Node) -> Vec<TensorId> {
    let mut ids = Vec::new();
    if writes_first_argument(&node.op)
        && let Some(first) = node.args.first()
    {
        for_each_value(first, &mut |id| ids.push(id));
    }
    for (_, arg) in node.kwargs.iter().filter(|(name, _)| name.as_ref() == "out") {
        for_each_value(arg, &mut |id| ids.push(id));
    }
    ids
}

/// Name of an operator without namespace and overload: `sum` of `aten.sum.dim_IntList`.
pub(crate) fn base_name(op: &str) -> &str {
    op.split('.').nth(1).unwrap_or(op)
}

/// Whether an operator writes to its first argument: its name ends in an underscore (`add_`).
pub(crate) fn writes_first_argument(op: &str) -> bool {
    let name = base_name(op);
    name.ends_with('_') && !name.ends_with("__")
}

/// Whether an operator's calls must keep their order among each other: random numbers, collectives, and
/// operators that we know nothing of.
pub(crate) fn is_ordered(op: &str) -> bool {
    const RANDOM: [&str; 26] = [
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "normal",
        "normal_functional",
        "bernoulli",
        "uniform",
        "multinomial",
        "exponential",
        "cauchy",
        "geometric",
        "log_normal",
        "random",
        "native_dropout",
        "dropout",
        "alpha_dropout",
        "feature_dropout",
        "rrelu_with_noise",
        "poisson",
        "binomial",
        "_standard_gamma",
        "_sample_dirichlet",
    ];
    let namespace = op.split('.').next().unwrap_or("");
    let name = base_name(op);
    let name = name.strip_suffix('_').unwrap_or(name);
    !matches!(namespace, "aten" | "prims" | "loafc")
        || RANDOM.contains(&name)
        || name.starts_with("_scaled_dot_product")
}

/// Whether a call does something besides making its results.
pub(crate) fn has_effect(op: &str) -> bool {
    let name = base_name(op);
    writes_first_argument(op) || is_ordered(op) || name.contains("_assert") || name == "_linalg_check_errors"
}
