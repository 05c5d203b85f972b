//! Large programs of a known shape, to measure how compile time grows: transformer blocks, and chains of maps and
//! reductions. They are text, so that they can be looked at, and every step is forced to be a nest of its own.

use std::fmt::Write;

/// Kinds of large programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Blocks of layer norm, projections by library calls, head splits, softmax, residuals and an activation.
    Transformer,
    /// One long chain of maps with a row reduction every eighth step.
    Chain,
}

impl Shape {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Transformer => "transformer",
            Shape::Chain => "chain",
        }
    }
}

/// A program that is lowered to about `nests` loop nests.
pub fn synthetic_program(shape: Shape, nests: usize) -> String {
    match shape {
        Shape::Transformer => transformer(nests),
        Shape::Chain => chain(nests),
    }
}

struct Text {
    text: String,
    fresh: usize,
}

impl Text {
    /// Appends a call and returns its result's name.
    fn call(&mut self, call: std::fmt::Arguments) -> String {
        let name = format!("%t{}", self.fresh);
        self.fresh += 1;
        let _ = writeln!(self.text, "  {name} = {call}");
        name
    }

    /// As [`Text::call`], made a nest of its own.
    fn nest(&mut self, call: std::fmt::Arguments) -> String {
        let value = self.call(call);
        self.call(format_args!("loafc.realize.default({value})"))
    }
}

/// Nests of one block of [`transformer`].
const NESTS_PER_BLOCK: usize = 29;

fn transformer(nests: usize) -> String {
    let mut t = Text { text: String::new(), fresh: 0 };
    let _ = writeln!(
        t.text,
        "graph @transformer(%x: f32[128, 256], %w: f32[256, 256], %u: f32[256, 1024], %d: f32[1024, 256], \
         %b: f32[256], %c: f32[1024]) {{"
    );
    let mut x = "%x".to_owned();
    for _ in 0..nests.div_ceil(NESTS_PER_BLOCK) {
        let n = layer_norm(&mut t, &x);
        let mut heads = Vec::new();
        for _ in 0..3 {
            let p = t.call(format_args!("aten.mm.default({n}, %w)"));
            let p = t.nest(format_args!("aten.add.Tensor({p}, %b)"));
            let p = t.call(format_args!("aten.view.default({p}, [128, 4, 64])"));
            let p = t.call(format_args!("aten.permute.default({p}, [1, 0, 2])"));
            heads.push(t.nest(format_args!("aten.clone.default({p}, memory_format=\"contiguous_format\")")));
        }
        let k = t.call(format_args!("aten.permute.default({}, [0, 2, 1])", heads[1]));
        let a = t.call(format_args!("aten.bmm.default({}, {k})", heads[0]));
        let a = t.nest(format_args!("aten.mul.Tensor({a}, 0.125)"));
        let m = t.nest(format_args!("aten.amax.default({a}, [-1], true)"));
        let e = t.call(format_args!("aten.sub.Tensor({a}, {m})"));
        let e = t.nest(format_args!("aten.exp.default({e})"));
        let s = t.nest(format_args!("aten.sum.dim_IntList({e}, [-1], true)"));
        let a = t.nest(format_args!("aten.div.Tensor({e}, {s})"));
        let o = t.call(format_args!("aten.bmm.default({a}, {})", heads[2]));
        let o = t.call(format_args!("aten.permute.default({o}, [1, 0, 2])"));
        let o = t.nest(format_args!("aten.clone.default({o}, memory_format=\"contiguous_format\")"));
        let o = t.call(format_args!("aten.view.default({o}, [128, 256])"));
        let o = t.call(format_args!("aten.mm.default({o}, %w)"));
        let o = t.call(format_args!("aten.add.Tensor({o}, %b)"));
        let r = t.nest(format_args!("aten.add.Tensor({o}, {x})"));
        let n = layer_norm(&mut t, &r);
        let h = t.call(format_args!("aten.mm.default({n}, %u)"));
        let h = t.call(format_args!("aten.add.Tensor({h}, %c)"));
        let g = t.call(format_args!("aten.tanh.default({h})"));
        let h = t.nest(format_args!("aten.mul.Tensor({h}, {g})"));
        let h = t.call(format_args!("aten.mm.default({h}, %d)"));
        x = t.nest(format_args!("aten.add.Tensor({h}, {r})"));
    }
    let _ = writeln!(t.text, "  return {x}\n}}");
    t.text
}

fn layer_norm(t: &mut Text, x: &str) -> String {
    let m = t.nest(format_args!("aten.mean.dim({x}, [-1], true)"));
    let c = t.nest(format_args!("aten.sub.Tensor({x}, {m})"));
    let q = t.call(format_args!("aten.mul.Tensor({c}, {c})"));
    let v = t.nest(format_args!("aten.mean.dim({q}, [-1], true)"));
    let v = t.call(format_args!("aten.add.Tensor({v}, 1e-05)"));
    let r = t.call(format_args!("aten.rsqrt.default({v})"));
    let n = t.call(format_args!("aten.mul.Tensor({c}, {r})"));
    t.nest(format_args!("aten.mul.Tensor({n}, %b)"))
}

fn chain(nests: usize) -> String {
    let mut t = Text { text: String::new(), fresh: 0 };
    let _ = writeln!(t.text, "graph @chain(%x: f32[256, 512], %y: f32[256, 512], %z: f32[512]) {{");
    let mut x = "%x".to_owned();
    for k in 0..nests {
        x = match k % 8 {
            0 => t.nest(format_args!("aten.add.Tensor({x}, %y)")),
            2 => t.nest(format_args!("aten.mul.Tensor({x}, %z)")),
            6 => {
                let s = t.nest(format_args!("aten.sum.dim_IntList({x}, [-1], true)"));
                t.call(format_args!("aten.sub.Tensor({x}, {s})"))
            }
            _ => t.nest(format_args!("aten.mul.Tensor({x}, 0.5)")),
        };
    }
    let _ = writeln!(t.text, "  return {x}\n}}");
    t.text
}
