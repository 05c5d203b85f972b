//! Loads object files into this process. One session serves all kernels of one compilation: it costs about a
//! millisecond to make, and its code can be freed only as a whole.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use llvm_sys::core::LLVMCreateMemoryBufferWithMemoryRangeCopy;
use llvm_sys::error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage};
use llvm_sys::orc2::lljit::{
    LLVMOrcCreateLLJIT, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddObjectFile, LLVMOrcLLJITGetMainJITDylib,
    LLVMOrcLLJITLookup, LLVMOrcLLJITMangleAndIntern, LLVMOrcLLJITRef,
};
use llvm_sys::orc2::{
    LLVMJITEvaluatedSymbol, LLVMJITSymbolFlags, LLVMOrcAbsoluteSymbols, LLVMOrcCSymbolMapPair,
    LLVMOrcJITDylibDefine,
};

/// `LLVMJITSymbolGenericFlagsExported | LLVMJITSymbolGenericFlagsCallable` of LLVM's C header.
const EXPORTED_CALLABLE: u8 = 1 | 4;

/// Code that stays loaded as long as a clone of this lives.
#[derive(Clone, Debug)]
pub struct LoadedCode(#[expect(dead_code, reason = "held for its drop")] Arc<Session>);

/// An ORC LLJIT instance.
#[derive(Debug)]
pub struct Session {
    jit: LLVMOrcLLJITRef,
}

// SAFETY: an LLJIT instance locks its session inside; LLVM documents adding and looking up as thread-safe.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

unsafe extern "C" {
    fn memcpy();
    fn memmove();
    fn memset();
}

impl Session {
    /// An empty session that knows the few library functions which LLVM may call on its own account.
    pub fn new() -> Result<Session, String> {
        super::target::initialize();
        let mut jit = std::ptr::null_mut();
        // SAFETY: a null builder asks for the defaults; `jit` is written on success only.
        check(unsafe { LLVMOrcCreateLLJIT(&mut jit, std::ptr::null_mut()) })?;
        let session = Session { jit };
        session.define_library_functions()?;
        Ok(session)
    }

    fn define_library_functions(&self) -> Result<(), String> {
        let known: [(&CStr, unsafe extern "C" fn()); 3] =
            [(c"memcpy", memcpy), (c"memmove", memmove), (c"memset", memset)];
        let mut pairs = known.map(|(name, function)| LLVMOrcCSymbolMapPair {
            // SAFETY: the session is alive; the name is copied. `LLVMOrcAbsoluteSymbols` takes the reference.
            Name: unsafe { LLVMOrcLLJITMangleAndIntern(self.jit, name.as_ptr()) },
            Sym: LLVMJITEvaluatedSymbol {
                Address: function as usize as u64,
                Flags: LLVMJITSymbolFlags { GenericFlags: EXPORTED_CALLABLE, TargetFlags: 0 },
            },
        });
        // SAFETY: `pairs` is valid for the call; the dylib takes the unit over on success.
        check(unsafe {
            let unit = LLVMOrcAbsoluteSymbols(pairs.as_mut_ptr(), pairs.len());
            LLVMOrcJITDylibDefine(LLVMOrcLLJITGetMainJITDylib(self.jit), unit)
        })
    }

    /// Adds an object file; its symbols must be new to the session.
    pub fn add_object(&self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the range is copied; the session takes the buffer over, on failure too.
        check(unsafe {
            let buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(
                bytes.as_ptr().cast(),
                bytes.len(),
                c"kernel".as_ptr(),
            );
            LLVMOrcLLJITAddObjectFile(self.jit, LLVMOrcLLJITGetMainJITDylib(self.jit), buffer)
        })
    }

    /// Address of a function in an added object; links the object on its first look-up.
    pub fn address_of(&self, function: &str) -> Result<u64, String> {
        let name = CString::new(function).map_err(|e| e.to_string())?;
        let mut address = 0;
        // SAFETY: the session is alive and the name ends in zero.
        check(unsafe { LLVMOrcLLJITLookup(self.jit, &mut address, name.as_ptr()) })?;
        Ok(address)
    }

    /// A handle that keeps the code loaded.
    pub fn keep(self: &Arc<Self>) -> LoadedCode {
        LoadedCode(self.clone())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: nobody holds an address any more: entries are reachable only through kernels with a handle.
        let _ = check(unsafe { LLVMOrcDisposeLLJIT(self.jit) });
    }
}

fn check(error: LLVMErrorRef) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is consumed by asking for its message, which is then ours to free.
    unsafe {
        let text = LLVMGetErrorMessage(error);
        let message = CStr::from_ptr(text).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(text);
        Err(message)
    }
}
