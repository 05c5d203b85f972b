//! The machine that code is generated for: this one.

use std::sync::OnceLock;

use inkwell::OptimizationLevel;
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};

/// What this machine's processor is called and can do, in LLVM's words.
#[derive(Debug)]
pub struct Host {
    triple: String,
    cpu: String,
    features: String,
    /// Width of its widest vector registers, in bits.
    pub vector_bits: u32,
}

/// Makes LLVM's code generator for this machine known to LLVM; cheap after the first call.
pub fn initialize() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // The only failure is a target that LLVM was built without; making the machine reports that.
        let _ = Target::initialize_native(&InitializationConfig::default());
        // SAFETY: the strings live as long as the program, and no other thread is in here.
        unsafe { llvm_sys::support::LLVMParseCommandLineOptions(2, OPTIONS.0.as_ptr(), std::ptr::null()) };
    });
}

/// Options that LLVM takes as a command line alone. In functions of hundreds of branches with calls, finding regions
/// for a constant that stays in a register all along would take a minute; kernels of common size never use up as much
/// of the budget.
struct CommandLine([*const std::ffi::c_char; 2]);

// SAFETY: nobody writes to the strings.
unsafe impl Sync for CommandLine {}

static OPTIONS: CommandLine =
    CommandLine([c"loafc".as_ptr(), c"-grow-region-complexity-budget=500".as_ptr()]);

/// This machine.
pub fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        initialize();
        let features = TargetMachine::get_host_cpu_features().to_string();
        let has = |name: &str| features.split(',').any(|f| f == name);
        let vector_bits = match () {
            _ if has("+avx512f") && has("+avx512bw") && has("+avx512vl") && has("+avx512dq") => 512,
            _ if has("+avx2") => 256,
            _ => 128,
        };
        Host {
            triple: TargetMachine::get_default_triple().as_str().to_string_lossy().into_owned(),
            cpu: TargetMachine::get_host_cpu_name().to_string(),
            features,
            vector_bits,
        }
    })
}

/// The version of the LLVM library that is loaded.
pub fn llvm_version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the pointers are to live integers.
    unsafe { llvm_sys::core::LLVMGetVersion(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

impl Host {
    /// All that code for this machine depends on, but the width of vectors that is asked for.
    pub fn description(&self) -> String {
        format!("{} {} {}", self.triple, self.cpu, self.features)
    }

    /// A code generator; not shared between threads.
    pub fn machine(&self) -> Result<TargetMachine, String> {
        let triple = TargetTriple::create(&self.triple);
        Target::from_triple(&triple)
            .map_err(|e| e.to_string())?
            .create_target_machine(
                &triple,
                &self.cpu,
                &self.features,
                OptimizationLevel::Default,
                RelocMode::PIC,
                CodeModel::Default,
            )
            .ok_or_else(|| format!("no code generator for {} ({})", self.triple, self.cpu))
    }
}
