//! The program's commands.
//!
//! Rule: a command's `Args` is what was typed; its `run` prints to standard output and returns the exit
//! status.

pub mod classify;
pub mod explain;
pub mod profile;
mod select;
