//! Each crate may use only those before it: what keeps operators out of the scheduler and machines out of
//! everything above code generation.

use std::path::Path;

/// The crates in the order of a program's way through them; the front ends stand side by side at the end.
const ORDER: [&str; 6] = ["loafc-ir", "loafc-lower", "loafc-fuse", "loafc-codegen", "loafc-runtime", "loafc"];

/// Names of the workspace's crates that a manifest depends on, of whatever kind the dependency is.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let name: String =
            line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_').collect();
        if section.contains("dependencies") && (name == "loafc" || name.starts_with("loafc-")) {
            found.push(name);
        }
    }
    found
}

#[test]
fn each_crate_depends_only_on_those_before_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let rank = |n: &str| ORDER.iter().position(|o| *o == n);
        let own = rank(&name).unwrap_or(ORDER.len());
        for dependency in dependencies(&manifest) {
            let other = rank(&dependency);
            assert!(other.is_some_and(|o| o < own), "{name} must not depend on {dependency}");
        }
        seen.push(name);
    }
    for name in ORDER {
        assert!(seen.iter().any(|s| s == name), "crate {name} is missing");
    }
}

#[test]
fn dependencies_of_every_kind_are_found() {
    let manifest = "[package]\nname = \"loafc-x\"\n[dependencies]\nloafc-ir.workspace = true\n\
        [dev-dependencies]\nloafc = { path = \"..\" }\nother = \"1\"\n[lints]\nloafc-lint = 1";
    assert_eq!(dependencies(manifest), ["loafc-ir", "loafc"]);
}
