//! The program's commands.
//!
//! Rule: a command's `Args` is what was typed; its `run` prints to standard output and returns the exit
//! status.

use std::io::{self, Write};

pub mod approvals;
pub mod audit;
pub mod classify;
pub mod doctor;
pub mod escalate;
pub mod exit;
pub mod explain;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod profile;
pub mod run;
mod select;
pub mod session;

/// Prints a whole text. A reader that has gone wants no more of it, which is no error.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
