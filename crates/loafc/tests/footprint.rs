//! What compiling leaves behind: LLVM's code goes out of memory, and comes back where it is needed again.

#![cfg(target_os = "linux")]

use loafc::{Compiler, DType, GraphBuilder, Options, Size, Tensor, TensorType};

/// Kilobytes of LLVM's code that are in memory: of its library, or of this program where that holds it.
fn resident_code() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = std::env::current_exe().unwrap();
    let file = if maps.contains("libLLVM") { "libLLVM" } else { own.to_str().unwrap() };
    let (mut is_code, mut total) = (false, 0);
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if fields.get(1).is_some_and(|access| access.len() == 4 && access.ends_with('p')) {
            is_code = fields[1] == "r-xp" && fields.last().is_some_and(|mapped| mapped.contains(file));
        } else if is_code && fields[0] == "Rss:" {
            total += fields[1].parse::<usize>().unwrap();
        }
    }
    total
}

fn doubled() -> Vec<f32> {
    let mut build = GraphBuilder::new("double");
    let x = build.input("x", TensorType::contiguous(DType::F32, [Size::from(4)])).unwrap();
    let y = build.add(x, x).unwrap();
    let program = Compiler::new(Options::default()).compile(build.finish(&[y])).unwrap();
    let x = Tensor::from_slice(&[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    program.run(&[x]).unwrap()[0].to_vec().unwrap()
}

#[test]
fn the_compilers_code_leaves_memory_and_comes_back() {
    assert_eq!(doubled(), [2.0, 4.0, 6.0, 8.0]);
    let compiled = resident_code();
    loafc::release_compiler_memory();
    let left = resident_code();
    assert!(left < compiled / 4, "{left} of {compiled} KiB are left");
    assert_eq!(doubled(), [2.0, 4.0, 6.0, 8.0]);
    assert!(resident_code() > left);
}
