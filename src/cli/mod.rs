//! The program's commands.
//!
//! Rule: a command's `Args` is what was typed; its `run` prints to standard output and returns the exit
//! status.

pub mod approvals;
pub mod classify;
pub mod exit;
pub mod explain;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod profile;
pub mod run;
mod select;
