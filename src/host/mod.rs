//! The host: facts that are read, never changed: canonical paths, the caller's home, git's directories.
//!
//! Rule: nothing here runs a program, and nothing here waits: a FIFO, a device or an endless file in a
//! workspace is as harmless as a missing one. Probes, which try things in a child, wait a bounded time.

pub mod binary;
pub mod disk;
pub mod facts;
pub mod git;
pub mod home;
pub mod mounts;
pub mod paths;
pub mod probe;
