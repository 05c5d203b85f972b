//! Extern calls that the runtime computes itself, where a library is slow.

use loafc_ir::nest::{ExternCall, NestProgram};

use crate::externs::ResultMemory;
use crate::products::SmallProduct;
use crate::scan::Scan;
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};

/// A call that needs no library.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Native {
    Scan(Scan),
    Product(SmallProduct),
}

impl Native {
    /// The call, if it is one of these.
    pub(crate) fn of(call: &ExternCall, program: &NestProgram) -> Option<Native> {
        Scan::of(call, program)
            .map(Native::Scan)
            .or_else(|| SmallProduct::of(call, program).map(Native::Product))
    }

    /// Computes it into the results' planned memory.
    ///
    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results.
    pub(crate) unsafe fn run(
        &self,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<Vec<ResultMemory>, &'static str> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Native::Scan(scan) => scan.run(tensors, results, team),
                Native::Product(product) => product.run(tensors, results, team)?,
            }
        }
        let made = |r: &Option<_>| if r.is_some() { ResultMemory::Written } else { ResultMemory::Unused };
        Ok(results.iter().map(made).collect())
    }
}
