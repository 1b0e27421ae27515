//! Host facts.
pub mod facts;
