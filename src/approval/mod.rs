//! Placeholder until the gate is merged.
pub mod queue;
pub mod terminal;
