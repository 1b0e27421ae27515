//! Cofferdam runs shell commands that nobody has reviewed: confined by the Linux kernel, truthful about
//! what was refused, and nearly as fast as without.
//!
//! # A call, from a request to its facts
//!
//! ```text
//! ExecRequest → ExecSpec       defaults and caps, applied once by the executor that owns them
//!   → Policy                   profile, mode and workspace, in words: what may be touched
//!   → Plan                     policy and host facts: every mount, Landlock rule, filter and limit
//!   → cell → view → init       the kernel work, in processes of their own
//!   → output, end, events      bounded tail, complete copy, refused calls
//!   → denial facts             what was refused and mattered, and the narrowest mode that would allow it
//! ```
//!
//! # Example
//!
//! ```standalone_crate
//! use cofferdam::executor::{Confined, Confinement, Executor, Ran, Settings, Watch};
//! use cofferdam::mode::Mode;
//! use cofferdam::request::ExecRequest;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // First of all, before any thread: this program is started again to be a session's cell.
//!     cofferdam::cell_main();
//!
//!     let workspace = std::env::temp_dir().join(format!("example-{}", std::process::id()));
//!     std::fs::create_dir_all(&workspace)?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let executor = Confined::new(
//!             Settings {
//!                 workspace: Some(workspace.clone()),
//!                 ..Settings::default()
//!             },
//!             Confinement {
//!                 mode: Mode::WorkspaceWrite,
//!                 ..Confinement::default()
//!             },
//!         );
//!         let request = ExecRequest::shell("echo kept > here; cat here; echo lost > /usr/lost");
//!         let spec = executor.resolve(request)?;
//!         let Ran::Finished(done) = executor.run(spec, Watch::default()).await? else {
//!             unreachable!("only `yield_after` lets a run go on in the background");
//!         };
//!         assert_eq!(done.stdout.text, "kept\n");
//!         assert_eq!(done.ended.exit_code(), Some(1));
//!         assert!(done.stderr.text.contains("/usr/lost"));
//!         executor.shutdown().await;
//!         std::fs::remove_dir_all(&workspace)?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! # Modules
//!
//! In the order of a call; a module imports only from those above it.

pub mod mode;

pub mod outcome;

mod sys;

pub mod host;

pub mod policy;

pub mod request;

pub mod session;

pub mod environment;

pub mod plan;

pub mod output;

pub mod denial;

mod cell;

pub mod executor;

pub mod approval;

pub mod tools;

#[cfg(feature = "cli")]
pub mod audit;

#[cfg(feature = "mcp")]
pub mod mcp;

#[cfg(feature = "cli")]
pub mod cli;

pub use cell::{Ahead, cell_main, fork_ahead};
