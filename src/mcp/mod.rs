//! The MCP server.

pub mod codex;
pub mod lines;
pub mod progress;
