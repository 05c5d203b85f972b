//! Random tensor programs: machine code and loop trees against fused groups, whatever is fused with what.

mod support;

use loafc_fuse::FuseOptions;
use loafc_ir::random_program::random_program;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_level_computes_the_same(seed in any::<u64>(), calls in 1usize..14) {
        support::check_with(&random_program(seed, calls), &[], &FuseOptions::default(), seed);
    }

    #[test]
    fn odd_fusions_compute_the_same(seed in any::<u64>(), calls in 1usize..14) {
        let options = FuseOptions { fusion_chaos_seed: Some(seed), ..FuseOptions::default() };
        support::check_with(&random_program(seed, calls), &[], &options, seed);
    }
}

/// A vectorised digit that is not the last one of partial results.
#[test]
fn lanes_of_partial_results_lie_apart() {
    let seed = 9776992828743830389;
    let options = FuseOptions { fusion_chaos_seed: Some(seed), ..FuseOptions::default() };
    support::check_with(&random_program(seed, 8), &[], &options, seed);
}
