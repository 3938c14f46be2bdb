//! Ctrl-C and SIGTERM: the first asks the running work to end well, the second ends the process at
//! once. SIGHUP, where there is something to read again, asks for that.

use crate::failure::{Code, Failure, Outcome};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::sync::{Arc, atomic::AtomicBool};

/// A flag that SIGHUP sets, which then ends the process no more.
///
/// # Errors
/// If the operating system refuses the handler.
pub fn hang_up() -> Outcome<Arc<AtomicBool>> {
    let told = Arc::new(AtomicBool::new(false));
    flag::register(SIGHUP, Arc::clone(&told)).map_err(|error| Failure::io("installing a signal handler", &error))?;
    Ok(told)
}

/// Installs the handlers. The flag is set by the first signal.
///
/// # Errors
/// If the operating system refuses a handler.
pub fn install() -> Outcome<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the shutdown looks at the flag before this signal sets it.
        flag::register_conditional_shutdown(signal, Code::Interrupted as i32, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::io("installing a signal handler", &error))?;
    }
    Ok(stop)
}
