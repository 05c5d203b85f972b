//! Gets the machine code of kernels from where it is cheapest: this process, which may hold it for another program; a
//! store, which may have it from an earlier process; or LLVM. Code is found by a key over everything that decides
//! about it, so the three can't disagree.

use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};

use crate::cpu;
use crate::cpu::jit::{LoadedCode, Session};
use crate::kernel::{CodegenError, CodegenOptions, Entry};
use crate::loop_tree::{Kernel, SizeSlots};

/// Names machine code: a SHA-256 of the kernel's structure, this build of the compiler, LLVM's version, the processor
/// with its features, and the width of vectors.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey(pub [u8; 32]);

impl ObjectKey {
    /// Of a kernel with this [`Kernel::key`].
    fn new(structure: &str, vector_bits: Option<u32>) -> ObjectKey {
        let host = cpu::target::host();
        let mut hash = Sha256::new();
        let parts = [
            env!("LOAFC_CODEGEN_BUILD"),
            &cpu::target::llvm_version(),
            &host.description(),
            &cpu::compile::used_bits(vector_bits).to_string(),
            structure,
        ];
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        ObjectKey(hash.finalize().into())
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// Keeps object files beyond the process. Both ways may fail silently: code that isn't found is made anew.
pub trait ObjectStore: Send + Sync + std::fmt::Debug {
    /// What was saved under a key, complete and unchanged; `None` if there is any doubt.
    fn load(&self, key: &ObjectKey) -> Option<Vec<u8>>;

    /// Saves an object file for other processes.
    fn save(&self, key: &ObjectKey, object: &[u8]);
}

/// Where a kernel's code came from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// LLVM made it.
    Compiled,
    /// The process had it already.
    Process,
    /// The store had it.
    Store,
}

/// Machine code in this process.
#[derive(Debug)]
pub struct LoadedObject {
    /// The code of each phase.
    pub entries: Vec<Entry>,
    /// The object file that it was loaded from.
    pub object: Arc<[u8]>,
    /// Keeps the code loaded.
    _code: LoadedCode,
}

/// A kernel to get code for.
pub struct Wanted<'a> {
    /// [`Kernel::key`].
    pub structure: &'a str,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Its sizes.
    pub slots: &'a SizeSlots,
}

/// Code of a kernel.
pub struct Found {
    /// The code.
    pub loaded: Arc<LoadedObject>,
    /// Where it came from.
    pub origin: Origin,
    /// LLVM IR and assembly, with [`CodegenOptions::keep_text`].
    pub texts: Option<(String, String)>,
}

/// All code that some program of this process still uses.
static LOADED: LazyLock<Mutex<FxHashMap<ObjectKey, Weak<LoadedObject>>>> = LazyLock::new(Mutex::default);

/// Entries of [`LOADED`] from which on those of dropped programs are taken out.
const SWEEP_FROM: usize = 1024;

/// The code of several kernels, in their order.
///
/// # Errors
/// When LLVM refuses a kernel, or threads to compile with can't be started.
pub fn get(wanted: &[Wanted], options: &CodegenOptions) -> Result<Vec<Found>, CodegenError> {
    let keys: Vec<ObjectKey> =
        wanted.iter().map(|w| ObjectKey::new(w.structure, options.vector_bits)).collect();
    let mut found: Vec<Option<Found>> = keys.iter().map(|key| held(key, options)).collect();
    let mut session = None;
    for ((key, wanted), place) in keys.iter().zip(wanted).zip(&mut found).filter(|(_, f)| f.is_none()) {
        let Some(object) = stored(key, options) else { continue };
        // Code that can't be loaded is as good as none.
        *place = load(&mut session, key, wanted, object).ok().map(|loaded| Found {
            loaded,
            origin: Origin::Store,
            texts: None,
        });
        if place.is_none() {
            session = None;
        }
    }
    let missing: Vec<usize> = (0..wanted.len()).filter(|k| found[*k].is_none()).collect();
    for (k, object) in missing.iter().zip(compile(wanted, &keys, &missing, options)?) {
        let (key, wanted) = (&keys[*k], &wanted[*k]);
        let bytes: Arc<[u8]> = object.bytes.into();
        let loaded = load(&mut session, key, wanted, bytes.clone()).map_err(refused(wanted))?;
        if let Some(store) = &options.store {
            store.save(key, &bytes);
        }
        found[*k] = Some(Found { loaded, origin: Origin::Compiled, texts: object.texts });
    }
    Ok(found.into_iter().flatten().collect())
}

fn refused(wanted: &Wanted) -> impl FnOnce(String) -> CodegenError {
    let kernel = wanted.kernel.name.clone();
    move |message| CodegenError::Llvm { kernel, message }
}

/// Code that the process has. Texts are kept nowhere, so whoever wants them has the kernel compiled again.
fn held(key: &ObjectKey, options: &CodegenOptions) -> Option<Found> {
    if options.keep_text {
        return None;
    }
    let loaded = lock().get(key)?.upgrade()?;
    Some(Found { loaded, origin: Origin::Process, texts: None })
}

fn stored(key: &ObjectKey, options: &CodegenOptions) -> Option<Arc<[u8]>> {
    let store = options.store.as_ref().filter(|_| !options.keep_text)?;
    store.load(key).map(Into::into)
}

// A poisoned lock means that a panic hit between two calls of the map; the map is then still consistent.
fn lock() -> std::sync::MutexGuard<'static, FxHashMap<ObjectKey, Weak<LoadedObject>>> {
    LOADED.lock().unwrap_or_else(|e| e.into_inner())
}

fn compile(
    wanted: &[Wanted],
    keys: &[ObjectKey],
    missing: &[usize],
    options: &CodegenOptions,
) -> Result<Vec<cpu::compile::Object>, CodegenError> {
    let generate = |k: &usize| {
        let Wanted { kernel, slots, .. } = &wanted[*k];
        cpu::compile::compile(kernel, slots, &function(&keys[*k]), options.vector_bits, options.keep_text)
            .map_err(refused(&wanted[*k]))
    };
    if options.threads == 1 || missing.len() <= 1 {
        return missing.iter().map(generate).collect();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|e| CodegenError::Threads { message: e.to_string() })?;
    pool.install(|| missing.par_iter().map(generate).collect())
}

/// What the functions of a kernel's phases begin with.
fn function(key: &ObjectKey) -> String {
    format!("kernel_{}", &key.to_hex()[..32])
}

/// Loads an object file; one session serves all files of a call, and is made when the first needs it.
fn load(
    session: &mut Option<Arc<Session>>,
    key: &ObjectKey,
    wanted: &Wanted,
    object: Arc<[u8]>,
) -> Result<Arc<LoadedObject>, String> {
    let session: &Arc<Session> = match session {
        Some(session) => session,
        empty => empty.insert(Arc::new(Session::new()?)),
    };
    session.add_object(&object)?;
    let mut entries: Vec<Entry> = Vec::new();
    for phase in 0..wanted.kernel.phases.len() {
        let address = session.address_of(&format!("{}_{phase}", function(key)))?;
        // SAFETY: the emitter gives every phase's function the type of `Entry`, the key holds only code of this very
        // emitter, and the object that holds the pointer keeps the code loaded.
        entries.push(unsafe { std::mem::transmute::<usize, Entry>(address as usize) });
    }
    let loaded = Arc::new(LoadedObject { entries, object, _code: session.keep() });
    let mut all = lock();
    if all.len() >= SWEEP_FROM && all.len().is_power_of_two() {
        all.retain(|_, code| code.strong_count() > 0);
    }
    all.insert(*key, Arc::downgrade(&loaded));
    Ok(loaded)
}
