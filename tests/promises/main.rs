//! What Cofferdam promises, shown on the real kernel by the program and the library as users have them.
//!
//! Rule: every refusal stands beside the same action allowed, so that a broken probe can't pass. Tests are
//! about an ordinary user: started by root, each runs itself again as an account that is made up for it.
//! Those about root are skipped by name elsewhere, and a run with `COFFERDAM_EXPECTED_SKIPS=name,name…`
//! fails on a skip that isn't in that list.

#![allow(clippy::unwrap_used)] // Helpers of tests may panic as tests may.

mod world;

mod degrading;
mod denials;
mod endings;
mod files;
mod git;
mod network;
mod privileges;
mod processes;
mod program;
mod sessions;
mod spills;
mod syscalls;
mod workspaces;
