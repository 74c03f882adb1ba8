//! Loading of libibverbs at run time.

use std::ffi::{CStr, c_void};
use std::io;
use std::sync::OnceLock;

use super::abi::Functions;

/// File name of the library. Its providers come from the package `ibverbs-providers` (Debian) or `rdma-core`.
const LIBRARY_NAME: &CStr = c"libibverbs.so.1";

/// The loaded library. It stays loaded, because its providers keep state in it.
#[derive(Debug, Clone, Copy)]
pub struct VerbsLibrary {
    pub(super) functions: &'static Functions,
}

impl VerbsLibrary {
    /// Loads the library; later calls return the first result. A static program cannot load it.
    ///
    /// # Errors
    /// `NotFound` if the library is missing, `Unsupported` if it lacks a function.
    pub fn open() -> io::Result<Self> {
        static LOADED: OnceLock<Result<Functions, (io::ErrorKind, String)>> = OnceLock::new();
        let loaded = LOADED
            .get_or_init(|| load(LIBRARY_NAME).map_err(|error| (error.kind(), error.to_string())));
        match loaded {
            Ok(functions) => Ok(Self { functions }),
            Err((kind, reason)) => Err(io::Error::new(*kind, reason.clone())),
        }
    }
}

fn load(name: &CStr) -> io::Result<Functions> {
    // SAFETY: `name` ends with NUL. The initialisers of the library are those of rdma-core.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(io::Error::new(io::ErrorKind::NotFound, last_error()));
    }
    let symbol = |symbol: &CStr| -> io::Result<*mut c_void> {
        // SAFETY: `handle` is open and never closed; `symbol` ends with NUL.
        let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        if address.is_null() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, last_error()));
        }
        Ok(address)
    };
    macro_rules! functions {
        ($($field:ident = $name:literal),* $(,)?) => {
            Functions {
                // SAFETY: the symbol has this type in verbs.h, and a function pointer has the size of a pointer.
                $($field: unsafe { std::mem::transmute_copy(&symbol($name)?) },)*
            }
        };
    }
    Ok(functions! {
        get_device_list = c"ibv_get_device_list",
        free_device_list = c"ibv_free_device_list",
        get_device_name = c"ibv_get_device_name",
        open_device = c"ibv_open_device",
        close_device = c"ibv_close_device",
        query_device = c"ibv_query_device",
        query_port = c"ibv_query_port",
        query_gid_table = c"_ibv_query_gid_table",
        alloc_pd = c"ibv_alloc_pd",
        dealloc_pd = c"ibv_dealloc_pd",
        reg_mr = c"ibv_reg_mr",
        dereg_mr = c"ibv_dereg_mr",
        create_comp_channel = c"ibv_create_comp_channel",
        destroy_comp_channel = c"ibv_destroy_comp_channel",
        create_cq = c"ibv_create_cq",
        destroy_cq = c"ibv_destroy_cq",
        get_cq_event = c"ibv_get_cq_event",
        ack_cq_events = c"ibv_ack_cq_events",
        create_qp = c"ibv_create_qp",
        modify_qp = c"ibv_modify_qp",
        destroy_qp = c"ibv_destroy_qp",
        wc_status_str = c"ibv_wc_status_str",
    })
}

/// Text of the last error of the dynamic linker.
fn last_error() -> String {
    // SAFETY: dlerror returns NULL or a string that is valid until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error of the dynamic linker".to_owned();
    }
    // SAFETY: not NULL, and it ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_not_found() {
        let error = load(c"libibverbs-missing.so.1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("libibverbs-missing.so.1"), "{error}");
    }

    #[test]
    fn other_library_lacks_functions() {
        let error = load(c"libc.so.6").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
    }
}
