//! Builds a softmax over rows from its parts, compiles it, prints what became of it, and runs it.

use loafc::{Compiler, DType, GraphBuilder, Options, Size, Tensor, TensorType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut build = GraphBuilder::new("softmax");
    // Any number of rows: the symbol is bound when the program is called.
    let rows = build.size_symbol("rows", Some(1024));
    let x = build.input("x", TensorType::contiguous(DType::F32, [rows, Size::from(8)]))?;
    let largest = build.amax(x, &[-1], true)?;
    let shifted = build.sub(x, largest)?;
    let numerator = build.exp(shifted)?;
    let denominator = build.sum(numerator, &[-1], true)?;
    let result = build.div(numerator, denominator)?;

    let program = Compiler::new(Options::from_env()?).compile(build.finish(&[result]))?;
    println!("{}", program.report());

    let x = Tensor::random(DType::F32, &[3, 8], 1)?;
    let results = program.run(&[x])?;
    for row in results[0].to_vec::<f32>()?.chunks(8) {
        let sum: f32 = row.iter().sum();
        println!("{row:.3?} sums to {sum:.3}");
    }
    Ok(())
}
