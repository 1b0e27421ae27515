//! The MCP server.

pub mod codex;
pub mod elicit;
pub mod lines;
pub mod progress;
