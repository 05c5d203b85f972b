//! Random programs: shapes of extents 0 to 4, views of views, shared operands, reductions, writes to inputs.
//! Lowered, they compute what the interpreter says.

use proptest::prelude::*;

use crate::support::{check_with, inputs, lowered, parsed};

/// A program under construction: its text, and names and shapes of its f32 values.
struct Program {
    lines: Vec<String>,
    values: Vec<(String, Vec<i64>)>,
}

impl Program {
    fn add(&mut self, call: String, shape: Vec<i64>) {
        let name = format!("%t{}", self.lines.len());
        self.lines.push(format!("  {name} = {call}"));
        self.values.push((name, shape));
    }

    /// One more call, chosen by three numbers.
    fn step(&mut self, op: usize, pick: usize, detail: usize) {
        let (x, shape) = self.values[pick % self.values.len()].clone();
        let rank = shape.len();
        let dim = if rank > 0 { detail % rank } else { 0 };
        match op {
            0 => self.add(format!("aten.exp.default({x})"), shape),
            1 => self.add(format!("aten.mul.Tensor({x}, 0.5)"), shape),
            2 => self.add(format!("aten.tanh.default({x})"), shape),
            3 | 4 => {
                // With another value of this shape, or the value itself.
                let same: Vec<String> =
                    self.values.iter().filter(|v| v.1 == shape).map(|v| v.0.clone()).collect();
                let y = &same[detail % same.len()];
                let op = ["add", "sub"][op - 3];
                self.add(format!("aten.{op}.Tensor({x}, {y})"), shape);
            }
            5 if rank > 0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(1 + detail % rank);
                let to = order.iter().map(|d| shape[*d]).collect();
                self.add(format!("aten.permute.default({x}, {order:?})"), to);
            }
            6 => {
                let flat = vec![shape.iter().product::<i64>()];
                self.add(format!("aten.reshape.default({x}, {flat:?})"), flat);
            }
            7 if rank > 0 && shape[dim] > 1 => {
                let mut to = shape.clone();
                to[dim] -= 1;
                self.add(format!("aten.slice.Tensor({x}, {dim}, 1, 9223372036854775807)"), to);
            }
            8 if rank > 0 => {
                let mut to = shape.clone();
                to[dim] = 1;
                self.add(format!("aten.sum.dim_IntList({x}, [{dim}], true)"), to.clone());
                let (s, _) = self.values[self.values.len() - 1].clone();
                self.add(format!("aten.sub.Tensor({x}, {s})"), shape);
            }
            9 if rank > 0 && shape[dim] > 0 => {
                let mut to = shape.clone();
                to.remove(dim);
                self.add(format!("aten.amax.default({x}, [{dim}])"), to);
            }
            10 if rank > 0 => {
                let mut to = shape.clone();
                to[dim] *= 2;
                self.add(format!("aten.cat.default([{x}, {x}], {dim})"), to);
            }
            11 => self.add(format!("aten.clone.default({x})"), shape),
            12 if rank > 0 => self.add(format!("aten.flip.default({x}, [{dim}])"), shape),
            13 if rank > 0 => {
                let mut to = shape.clone();
                to[dim] += 3;
                let mut pads = vec![0; 2 * (rank - dim)];
                let last = pads.len();
                (pads[last - 2], pads[last - 1]) = (1, 2);
                self.add(format!("aten.constant_pad_nd.default({x}, {pads:?}, 0.25)"), to);
            }
            14 if rank < 4 => {
                let mut to = vec![2];
                to.extend(&shape);
                self.add(format!("aten.expand.default({x}, {to:?})"), to);
            }
            15 if rank == 1 && shape[0] % 2 == 0 => {
                let to = vec![2, shape[0] / 2];
                self.add(format!("aten.view.default({x}, {to:?})"), to);
            }
            16 if rank > 0 => self.add(format!("aten.roll.default({x}, [1], [{dim}])"), shape),
            17 if rank > 0 => {
                let mut to = shape.clone();
                to.insert(dim, 1);
                self.add(format!("aten.unsqueeze.default({x}, {dim})"), to);
            }
            18 => {
                let target = self.values.iter().take(2).find(|v| v.1 == shape).map(|v| v.0.clone());
                if let Some(target) = target {
                    self.lines.push(format!("  %w{} = aten.copy_.default({target}, {x})", self.lines.len()));
                }
            }
            _ => {}
        }
        // Programs stay small enough for the interpreter.
        if self.values.last().is_some_and(|v| v.1.iter().product::<i64>() > 200 || v.1.len() > 5) {
            self.values.pop();
        }
    }
}

fn random_program() -> impl Strategy<Value = String> {
    let shape = prop_oneof![
        8 => proptest::collection::vec(1i64..5, 0..4),
        1 => proptest::collection::vec(0i64..3, 1..3),
    ];
    let steps = proptest::collection::vec((0usize..19, any::<usize>(), any::<usize>()), 1..14);
    (shape, any::<bool>(), steps, any::<[usize; 3]>()).prop_map(|(shape, reversed, steps, outputs)| {
        let strides: Vec<i64> = if reversed {
            (0..shape.len()).map(|d| shape[..d].iter().map(|e| (*e).max(1)).product()).collect()
        } else {
            (0..shape.len()).map(|d| shape[d + 1..].iter().map(|e| (*e).max(1)).product()).collect()
        };
        let mut program = Program {
            lines: Vec::new(),
            values: vec![("%x".to_owned(), shape.clone()), ("%y".to_owned(), shape.clone())],
        };
        for (op, pick, detail) in steps {
            program.step(op, pick, detail);
        }
        let mut returned: Vec<String> =
            outputs.iter().map(|k| program.values[k % program.values.len()].0.clone()).collect();
        returned.push(program.values[program.values.len() - 1].0.clone());
        format!(
            "graph @random(%x: f32{shape:?} strides {strides:?}, %y: f32{shape:?}) {{\n{}\n  return {}\n}}",
            program.lines.join("\n"),
            returned.join(", ")
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_keep_their_values(text in random_program()) {
        let graph = parsed(&text);
        let program = lowered(&graph);
        check_with(&graph, &program, &inputs(&graph, 1));
    }
}
