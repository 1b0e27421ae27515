//! Every unsafe block and raw system call, one verb a function.
//!
//! Rule: nothing of this crate is imported here; each `unsafe` names the invariant and who keeps it.

pub(crate) mod child;
