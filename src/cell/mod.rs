//! Cells: the processes that do the kernel work.
//!
//! ```text
//! harness        sends requests over one SOCK_SEQPACKET pair, descriptors beside them
//!   └ cell       a fresh exec of this program with one thread: owns the user, network, IPC and UTS
//!     │          namespaces, the session's scratch, and one mount namespace (a view) per policy
//!     └ init     one per command: pid 1 of its PID namespace, with a copy of the view's mounts and a
//!       │        /proc of its own; answers supervised calls, reaps, ends the rest, reports
//!       └ bash   Landlock, seccomp, no capabilities, no_new_privs
//! ```
//!
//! Rule: a set-up failure is a step and an errno on the command's control socket, never text on its
//! stderr, and a command whose set-up failed has not run. Everything dies with its parent.

mod handle;
mod init;
mod last_steps;
mod message;
mod process;
mod supervisor;
mod view;
mod wire;

pub use handle::{Ahead, fork_ahead};
pub(crate) use handle::{Cell, Control, Incoming};
pub(crate) use message::{Failure, FailureKind, Go, Launch, Report, SetUp, Spill};
pub(crate) use wire::memory_file;

use std::sync::atomic::{AtomicBool, Ordering};

/// The name (argv[0]) under which this program is a cell.
pub(crate) const CELL_NAME: &str = "cofferdam-cell";

static CAN_BE_A_CELL: AtomicBool = AtomicBool::new(false);

/// Becomes a cell when this process was started as one, and returns at once otherwise.
///
/// A program that embeds the library calls this first in its `main`, before any thread is started; then
/// its own executable serves as the cofferdam binary and nothing else has to be installed.
pub fn cell_main() {
    CAN_BE_A_CELL.store(true, Ordering::Relaxed);
    if std::env::args_os()
        .next()
        .is_some_and(|name| name == CELL_NAME)
    {
        process::run();
    }
}

/// Whether this executable can be started as a cell.
pub(crate) fn can_be_a_cell() -> bool {
    CAN_BE_A_CELL.load(Ordering::Relaxed)
}
