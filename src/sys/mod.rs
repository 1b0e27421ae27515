//! Raw system calls, one verb a function: what nix, rustix, landlock and caps have no safe word for.
//!
//! Rule: every `unsafe` block of the crate stands here, and nothing of the crate is imported.

#![allow(unsafe_code)]

pub(crate) mod child;
mod notify;
mod process;
mod sockets;
mod tree;

pub use notify::{
    Notification, Reply, answer, install_filter, install_listener, is_pending, receive,
};
pub use process::{
    Child, close_all_but, close_all_from, close_from, execve, exit_now, fork, fork_into,
    is_single_threaded, landlock_abi, loopback_up, place_descriptor, reset_signals,
};
pub use sockets::{connect, unix_sockets_by_file};
pub use tree::{MountAttributes, set_mount_attributes};
