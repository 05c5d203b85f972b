//! Names this build of the code generator by the text that it is made from, so that machine code kept by another
//! build is never taken for its own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

fn main() {
    let mut hash = DefaultHasher::new();
    std::env::var("CARGO_PKG_VERSION").unwrap_or_default().hash(&mut hash);
    // What kernels compute is also decided by the operations that bodies are made of.
    for folder in ["src", "../loafc-ir/src"] {
        if Path::new(folder).is_dir() {
            println!("cargo::rerun-if-changed={folder}");
            hash_folder(Path::new(folder), &mut hash);
        }
    }
    println!("cargo::rustc-env=LOAFC_CODEGEN_BUILD={:016x}", hash.finish());
}

fn hash_folder(folder: &Path, hash: &mut DefaultHasher) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_folder(&path, hash);
        } else {
            path.hash(hash);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).hash(hash);
        }
    }
}
