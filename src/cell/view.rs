//! Views: mount namespaces that commands of one policy share.
//!
//! Rule: sources are taken while the host's own paths still show, everything turns read-only, and only
//! then the writable, private and masked places are laid over it, outermost first. Paths are opened
//! without following links, so a link that a command has put in the way stops the set-up.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat,
};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::message::{Failure, FailureKind as Kind, Spill, Step};
use crate::plan::{Identity, Mount, View, What};
use crate::sys::{MountAttributes, set_mount_attributes};

/// Device nodes of a minimal `/dev`.
const NODES: [&CStr; 6] = [c"null", c"zero", c"full", c"random", c"urandom", c"tty"];
const LINKS: [(&CStr, &CStr); 5] = [
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"ptmx", c"pts/ptmx"),
];
/// More views than this are never kept; the oldest goes first.
const MAX_VIEWS: usize = 8;

/// The mount namespaces of a cell.
pub(crate) struct Views {
    /// The host's mounts as the cell found them.
    base: OwnedFd,
    built: Vec<Built>,
    /// The first view that was built, which holds the session's scratch.
    first: Option<First>,
    last_id: u64,
}

struct First {
    view: View,
    namespace: OwnedFd,
}

struct Built {
    view: View,
    spill: Option<Spill>,
    id: ViewId,
    namespace: OwnedFd,
}

/// Names a view; it changes when something is added to the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewId(u64);

impl Views {
    /// Keeps the mount namespace that the caller is in as the base.
    pub fn new() -> Result<Views, Failure> {
        Ok(Views {
            base: current_namespace()?,
            built: Vec::new(),
            first: None,
            last_id: 0,
        })
    }

    /// Moves the caller into the view, which is built when there is none yet. The answer names the view
    /// in its present form.
    pub fn enter(
        &mut self,
        view: &View,
        runtime_folder: Option<&CString>,
        spill: Option<&Spill>,
    ) -> Result<ViewId, Failure> {
        let mut kept = self.built.iter().position(|built| built.view == *view);
        if let Some(at) = kept {
            enter_namespace(&self.built[at].namespace)?;
            if !is_whole(view) {
                // Whoever replaces a file outside takes the mount on it away.
                self.built.remove(at);
                kept = None;
            }
        }
        let at = match kept {
            Some(at) => at,
            None => {
                let scratch = self.take_scratch(view)?;
                enter_namespace(&self.base)?;
                unshare_mounts()?;
                build(view, scratch, runtime_folder)?;
                if self.built.len() == MAX_VIEWS {
                    self.built.remove(0);
                }
                let id = self.next_id();
                if self.first.is_none() {
                    self.first = Some(First {
                        view: view.clone(),
                        namespace: current_namespace()?,
                    });
                }
                self.built.push(Built {
                    view: view.clone(),
                    spill: None,
                    id,
                    namespace: current_namespace()?,
                });
                self.built.len() - 1
            }
        };
        if let Some(spill) = spill
            && self.built[at].spill.as_ref() != Some(spill)
        {
            enter_namespace(&self.base)?;
            let source = take(spill.path.as_c_str(), None)?;
            set_attributes(&source, true, "make the spill folder read-only")?;
            enter_namespace(&self.built[at].namespace)?;
            make_folders(&spill.path)?;
            attach(&source, &spill.path)?;
            let id = self.next_id();
            self.built[at].spill = Some(spill.clone());
            self.built[at].id = id;
        }
        Ok(self.built[at].id)
    }

    fn next_id(&mut self) -> ViewId {
        self.last_id += 1;
        ViewId(self.last_id)
    }

    /// Copies of `/tmp` and `/dev/shm` of an earlier view: a session has one of each. `/run`, where mount
    /// points are made, is never shared: a command could have put something in their place.
    fn take_scratch(&self, view: &View) -> Result<Vec<(CString, OwnedFd)>, Failure> {
        let Some(donor) = &self.first else {
            return Ok(Vec::new());
        };
        enter_namespace(&donor.namespace)?;
        let mut taken = Vec::new();
        for mount in &view.mounts {
            let shared =
                matches!(mount.what, What::Scratch { .. }) && mount.target.as_c_str() != c"/run";
            if shared && donor.view.mounts.contains(mount) {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let copy = open_tree(CWD, mount.target.as_c_str(), flags)
                    .step(Kind::SetUp, "open_tree of the session's scratch")?;
                taken.push((mount.target.clone(), copy));
            }
        }
        Ok(taken)
    }

    /// The base namespace, for what the cell does on the host's own paths.
    pub fn enter_base(&self) -> Result<(), Failure> {
        enter_namespace(&self.base)
    }
}

/// Whether every mount that restricts something is still there.
fn is_whole(view: &View) -> bool {
    view.mounts
        .iter()
        .all(|mount| is_mount_point(&mount.target))
}

fn is_mount_point(path: &CStr) -> bool {
    rustix::fs::statx(
        CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
        rustix::fs::StatxFlags::empty(),
    )
    .is_ok_and(|facts| {
        facts
            .stx_attributes
            .contains(rustix::fs::StatxAttributes::MOUNT_ROOT)
    })
}

fn current_namespace() -> Result<OwnedFd, Failure> {
    openat(
        CWD,
        c"/proc/self/ns/mnt",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(Kind::Namespaces, "open /proc/self/ns/mnt")
}

fn enter_namespace(namespace: impl AsFd) -> Result<(), Failure> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .step(Kind::Namespaces, "setns mount namespace")
}

fn unshare_mounts() -> Result<(), Failure> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .step(Kind::Namespaces, "unshare mount namespace")
}

fn build(
    view: &View,
    mut scratch: Vec<(CString, OwnedFd)>,
    runtime_folder: Option<&CString>,
) -> Result<(), Failure> {
    let root = open_path(c"/")?;
    set_mount_attributes(
        &root,
        MountAttributes {
            private: true,
            recursive: true,
            ..MountAttributes::default()
        },
    )
    .step(Kind::Namespaces, "make mounts private")?;

    let mut sources = take_sources(view)?;
    let devices = if scratch
        .iter()
        .any(|(target, _)| target.as_c_str() == c"/dev")
    {
        Vec::new()
    } else {
        take_devices()?
    };
    let masks = take_masks(view)?;

    set_mount_attributes(
        &root,
        MountAttributes {
            read_only: true,
            no_devices: true,
            no_setuid: true,
            recursive: true,
            ..MountAttributes::default()
        },
    )
    .step(Kind::Namespaces, "make all mounts read-only")?;

    for (at, mount) in view.mounts.iter().enumerate() {
        let target = mount.target.as_c_str();
        let kept = scratch.iter().position(|(path, _)| path == &mount.target);
        match (&mount.what, kept) {
            (What::Scratch { .. }, Some(kept)) => {
                attach(&scratch.swap_remove(kept).1, target)?;
            }
            (What::Scratch { bytes }, None) => mount_scratch(target, *bytes)?,
            (What::Devices, _) => make_devices(&devices)?,
            (What::Own { identity, .. }, _) => {
                if let Some(source) = sources[at].take() {
                    make_mount_point(target, identity.folder)?;
                    attach(&source, target)?;
                }
            }
            (What::Mask { folder }, _) => {
                make_mount_point(target, *folder)?;
                let mask = if *folder { &masks.folder } else { &masks.file };
                let mask = mask
                    .as_ref()
                    .ok_or_else(|| Failure::new(Kind::SetUp, "mask", nix::errno::Errno::ENOENT))?;
                let copy = open_tree(
                    mask,
                    c"",
                    OpenTreeFlags::OPEN_TREE_CLONE
                        | OpenTreeFlags::OPEN_TREE_CLOEXEC
                        | OpenTreeFlags::AT_EMPTY_PATH,
                )
                .step(Kind::SetUp, "open_tree of a mask")?;
                set_attributes(&copy, true, "make a mask read-only")?;
                attach(&copy, target)?;
            }
        }
    }
    if let Some(folder) = runtime_folder {
        make_folders(folder)?;
        rustix::fs::chmod(folder.as_c_str(), Mode::RWXU)
            .step(Kind::SetUp, "chmod of the runtime folder")?;
    }
    Ok(())
}

/// Detached copies of everything that shows the host's own files, in the order of the mounts.
fn take_sources(view: &View) -> Result<Vec<Option<OwnedFd>>, Failure> {
    view.mounts
        .iter()
        .map(|Mount { target, what }| match what {
            What::Own { writable, identity } => {
                let source = take(target, Some(identity))?;
                set_attributes(&source, !writable, "restrict a mount's attributes")?;
                Ok(Some(source))
            }
            What::Mask { .. } | What::Scratch { .. } | What::Devices => Ok(None),
        })
        .collect()
}

/// A detached, recursive copy of the mount at a path, which must still be what it was.
fn take(path: &CStr, identity: Option<&Identity>) -> Result<OwnedFd, Failure> {
    let named = |failure: Failure| failure.about(path.to_bytes());
    let at = open_without_links(path, "open a path of the policy")?;
    if let Some(identity) = identity {
        let found = fstat(&at).step(Kind::SetUp, "stat a path of the policy")?;
        if (found.st_dev, found.st_ino) != (identity.device, identity.inode) {
            let failure = Failure::new(
                Kind::Changed,
                "a path of the policy was replaced",
                nix::errno::Errno::ESTALE,
            );
            return Err(named(failure));
        }
    }
    open_tree(
        &at,
        c"",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE,
    )
    .step(Kind::SetUp, "open_tree of a path of the policy")
    .map_err(named)
}

/// A container's seccomp filter may refuse `openat2` as such; every other errno tells of the path.
fn changed_unless_refused(errno: rustix::io::Errno) -> Kind {
    match errno {
        rustix::io::Errno::NOSYS | rustix::io::Errno::PERM => Kind::Namespaces,
        _ => Kind::Changed,
    }
}

fn plain(errno: rustix::io::Errno) -> nix::errno::Errno {
    nix::errno::Errno::from_raw(errno.raw_os_error())
}

fn set_attributes(mount: &OwnedFd, read_only: bool, step: &str) -> Result<(), Failure> {
    set_mount_attributes(
        mount,
        MountAttributes {
            read_only,
            no_devices: true,
            no_setuid: true,
            private: true,
            recursive: true,
            ..MountAttributes::default()
        },
    )
    .step(Kind::SetUp, step)
}

fn take_devices() -> Result<Vec<(&'static CStr, OwnedFd)>, Failure> {
    let dev = open_path(c"/dev")?;
    let mut taken = Vec::new();
    for node in NODES {
        let copy = open_tree(
            &dev,
            node,
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
        );
        match copy {
            Ok(copy) => {
                // Not `no_devices`: these mounts must stay device nodes. Read-only stops a change of the
                // node's mode and owner, which root owns on the host, and no write to the device.
                set_mount_attributes(
                    &copy,
                    MountAttributes {
                        read_only: true,
                        no_setuid: true,
                        no_exec: true,
                        private: true,
                        ..MountAttributes::default()
                    },
                )
                .step(Kind::SetUp, "restrict a device's mount")?;
                taken.push((node, copy));
            }
            // A container may lack one of them.
            Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => {
                return Err(errno).step(Kind::SetUp, "open_tree of a device node");
            }
        }
    }
    Ok(taken)
}

struct Masks {
    folder: Option<OwnedFd>,
    file: Option<OwnedFd>,
}

/// An empty folder and an empty file without any permission, on a file system that nothing else shows:
/// the session's scratch is mounted over it.
fn take_masks(view: &View) -> Result<Masks, Failure> {
    if !view
        .mounts
        .iter()
        .any(|mount| matches!(mount.what, What::Mask { .. }))
    {
        return Ok(Masks {
            folder: None,
            file: None,
        });
    }
    let place = c"/tmp";
    mount_tmpfs(place, c"mode=0755,size=64k")?;
    let at = open_path(place)?;
    mkdirat(&at, c"folder", Mode::empty()).step(Kind::SetUp, "mkdir of a mask")?;
    openat(
        &at,
        c"file",
        OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(Kind::SetUp, "create a mask")?;
    let pick = |name: &CStr| open_path_at(at.as_fd(), name);
    Ok(Masks {
        folder: Some(pick(c"folder")?),
        file: Some(pick(c"file")?),
    })
}

fn mount_tmpfs(target: &CStr, options: &CStr) -> Result<(), Failure> {
    mount(
        c"tmpfs",
        target,
        c"tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        options,
    )
    .step(Kind::Namespaces, "mount tmpfs")
    .map_err(|failure| failure.about(target.to_bytes()))
}

fn mount_scratch(target: &CStr, bytes: Option<u64>) -> Result<(), Failure> {
    make_mount_point(target, true)?;
    let mode = if target == c"/run" { "0755" } else { "1777" };
    let options = match bytes {
        Some(bytes) => format!("mode={mode},size={bytes}"),
        None => format!("mode={mode}"),
    };
    let options = CString::new(options)
        .map_err(|_| Failure::new(Kind::SetUp, "scratch options", nix::errno::Errno::EINVAL))?;
    mount_tmpfs(target, &options)
}

fn make_devices(devices: &[(&'static CStr, OwnedFd)]) -> Result<(), Failure> {
    mount_tmpfs(c"/dev", c"mode=0755,size=64k")?;
    let dev = open_path(c"/dev")?;
    for (node, source) in devices {
        openat(
            &dev,
            *node,
            OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .step(Kind::SetUp, "create a device's mount point")?;
        let at = open_path_at(dev.as_fd(), node)?;
        move_onto(source, &at)?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &dev, name).step(Kind::SetUp, "symlink in /dev")?;
    }
    for folder in [c"pts", c"shm"] {
        mkdirat(&dev, folder, Mode::from_raw_mode(0o755)).step(Kind::SetUp, "mkdir in /dev")?;
    }
    mount(
        c"devpts",
        c"/dev/pts",
        c"devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=0620",
    )
    .step(Kind::SetUp, "mount devpts")?;
    set_mount_attributes(
        &dev,
        MountAttributes {
            read_only: true,
            no_exec: true,
            ..MountAttributes::default()
        },
    )
    .step(Kind::SetUp, "make /dev read-only")
}

fn open_path(path: &CStr) -> Result<OwnedFd, Failure> {
    open_path_at(CWD, path)
}

fn open_path_at(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Failure> {
    openat(
        at,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
    .step(Kind::SetUp, "open a mount point")
    .map_err(|failure| failure.about(path.to_bytes()))
}

/// Opens a path that no link may be on: a command could have made one.
fn open_without_links(path: &CStr, step: &str) -> Result<OwnedFd, Failure> {
    openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(|errno| {
        Failure::new(changed_unless_refused(errno), step, plain(errno)).about(path.to_bytes())
    })
}

/// Puts a detached mount at a path that holds no link.
fn attach(source: &OwnedFd, target: &CStr) -> Result<(), Failure> {
    let at = open_without_links(target, "open a mount point")?;
    move_onto(source, &at).map_err(|failure| failure.about(target.to_bytes()))
}

fn move_onto(source: &OwnedFd, target: &OwnedFd) -> Result<(), Failure> {
    move_mount(
        source,
        c"",
        target,
        c"",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .step(Kind::SetUp, "move_mount")
}

/// Makes what is missing of a mount point: below private scratch the host's folders don't show.
fn make_mount_point(target: &CStr, folder: bool) -> Result<(), Failure> {
    if rustix::fs::statat(CWD, target, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(());
    }
    if folder {
        return make_folders(target);
    }
    let path = Path::new(OsStr::from_bytes(target.to_bytes()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .step(Kind::SetUp, "make the folder of a mount point")
            .map_err(|failure| failure.about(target.to_bytes()))?;
    }
    File::create_new(path)
        .map(drop)
        .step(Kind::SetUp, "make a mount point")
        .map_err(|failure| failure.about(target.to_bytes()))
}

fn make_folders(target: &CStr) -> Result<(), Failure> {
    let path = Path::new(OsStr::from_bytes(target.to_bytes()));
    std::fs::create_dir_all(path)
        .step(Kind::SetUp, "make a mount point")
        .map_err(|failure| failure.about(target.to_bytes()))
}
