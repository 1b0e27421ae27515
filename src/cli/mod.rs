//! The command line.

pub mod approvals;
#[cfg(feature = "mcp")]
pub mod mcp;
