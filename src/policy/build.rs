//! From a mode, a workspace and profiles to a [`Policy`].
//!
//! Rule: this runs before every command, so it looks at names that it knows and never walks a tree; and
//! what a command could have made (a link, a file in a writable root) never widens anything.

use std::cell::LazyCell;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::profile::{self, Setting, Settings, WORKSPACE_FILE};
use super::{Environment, Network, Origin, Place, Policy, Require};
use rustc_hash::FxHashSet as HashSet;

use crate::host::git::{self, DotGit};
use crate::host::home;
use crate::host::mounts::{self, Mounts};
use crate::host::paths::{self, Lookup, Probe};
use crate::mode::Mode;
use crate::outcome::{NeverRan, NeverRanCode};

/// What a policy is made from.
#[derive(Clone)]
pub struct PolicyRequest<'a> {
    /// The mode that the command runs under.
    pub mode: Mode,
    /// The session's workspace, absolute.
    pub workspace: &'a Path,
    /// Further writable roots that the caller names: folders or files, absolute. Only workspace-write
    /// makes them writable.
    pub extra_writable: &'a [PathBuf],
    /// What the caller says about the network; `None` leaves it to the profile.
    pub network: Option<Network>,
    /// What the caller says about weaker hosts; `None` leaves it to the profile.
    pub require: Option<Require>,
    /// A profile of the user's choice, laid over the built-in one.
    pub profile: Option<&'a Path>,
    /// What `~` means.
    pub home: Option<PathBuf>,
    /// The account's own home, guarded as `~` is.
    pub account_home: Option<PathBuf>,
    /// Homes of other users that the caller can read: what is hidden below `~` is hidden there too, and what
    /// is protected there, where it lies in a writable root.
    pub other_homes: Vec<PathBuf>,
    /// The mounts of the caller: a hidden place may have other names through them.
    pub mounts: Arc<Mounts>,
    /// The policy of the session's last command: what was protected, pinned or hidden in it stays so, as
    /// long as it exists and no profile has changed about it.
    pub earlier: Option<&'a Policy>,
    /// The folder that holds `cofferdam/<mode>.toml`, the user's standing profiles.
    pub config_dir: Option<PathBuf>,
    /// Reads a variable of the caller.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl<'a> PolicyRequest<'a> {
    /// A request with this process's home, configuration folder and variables.
    pub fn new(mode: Mode, workspace: &'a Path) -> PolicyRequest<'a> {
        let home = home::home();
        PolicyRequest {
            mode,
            workspace,
            extra_writable: &[],
            network: None,
            require: None,
            profile: None,
            config_dir: home::config_dir(home.as_deref()),
            home,
            account_home: home::account_home(),
            other_homes: home::other_homes(workspace),
            mounts: mounts::current(),
            earlier: None,
            variable: &|name| std::env::var_os(name),
        }
    }
}

/// A policy with what it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// What a command may touch.
    pub policy: Policy,
    /// The profiles' lines behind it.
    pub settings: Arc<Settings>,
    /// For the person who started the command, a sentence each.
    pub warnings: Vec<String>,
}

impl Policy {
    /// Resolves a policy, with warnings for the person who started the command.
    ///
    /// # Errors
    /// As [`build`].
    pub fn build(request: &PolicyRequest<'_>) -> Result<(Policy, Vec<String>), NeverRan> {
        build(request).map(|built| (built.policy, built.warnings))
    }
}

/// Resolves a policy and keeps the settings that it was made from.
///
/// # Errors
/// `InvalidArgs` for a workspace or a root that is missing, a system folder or reached through a link
/// that a command could have made; `InvalidProfile` for anything wrong in a profile.
pub fn build(request: &PolicyRequest<'_>) -> Result<Built, NeverRan> {
    let mut warnings = Vec::new();
    let user_files = user_files(request)?;
    let workspace = workspace(request)?;
    let settings = settings(request, &user_files, &workspace.path, &mut warnings)?;
    if !request.mode.is_confined() {
        return Ok(Built {
            policy: unconfined(request, workspace.path, &settings),
            settings,
            warnings,
        });
    }
    let mut builder = Builder {
        homes: homes(request),
        workspace: workspace.path.clone(),
        roots: Vec::new(),
        protected: Vec::new(),
        absent: Vec::new(),
        links: Vec::new(),
        pinned: Vec::new(),
        hidden: Vec::new(),
        git_dirs: HashSet::default(),
        gaps: Vec::new(),
        warnings,
        lookup: RefCell::default(),
    };
    if request.mode == Mode::WorkspaceWrite {
        builder.add_roots(request, workspace, &settings)?;
        builder.refuse_profiles_behind_links(&user_files)?;
        builder.grant_git_directories();
        builder.protect_names(request, &settings)?;
        builder.protect_logs(request);
        builder.protect_git(request);
        for file in &user_files {
            builder.protect(file, &Origin::Argument);
        }
    }
    builder.hide(request, &settings)?;
    if let Some(earlier) = request.earlier {
        builder.remember(earlier, &settings);
    }
    builder.hide_other_names(&request.mounts);
    builder.keep_shut();
    builder.pin();
    let mut visible = builder.visible(&settings)?;
    let in_scratch = SCRATCH
        .iter()
        .any(|scratch| builder.workspace.starts_with(scratch));
    if request.mode == Mode::ReadOnly && in_scratch {
        // The private folder would hide what the commands are about.
        visible.push(Place {
            path: builder.workspace.clone(),
            origin: Origin::Workspace,
        });
    }
    let policy = Policy {
        mode: request.mode,
        workspace: builder.workspace,
        home: request.home.clone(),
        writable: sorted(builder.roots),
        protected: sorted(builder.protected),
        protected_absent: sorted(builder.absent),
        pinned: sorted(builder.pinned),
        protected_links: sorted(builder.links),
        hidden: sorted(builder.hidden),
        visible: sorted(visible),
        scratch: SCRATCH.map(PathBuf::from).to_vec(),
        network: settings.network.value,
        refused_calls: settings
            .refuse
            .iter()
            .map(|group| group.value.clone())
            .collect(),
        limits: settings.limit_values(),
        environment: environment(&settings),
        require: settings.require.value,
        gaps: builder.gaps,
    };
    Ok(Built {
        policy,
        settings,
        warnings: builder.warnings,
    })
}

/// What the layers say together for this request: built in, the user's, the caller's arguments, and last
/// the workspace's own file, which may only tighten.
fn settings(
    request: &PolicyRequest<'_>,
    user_files: &[PathBuf],
    workspace: &Path,
    warnings: &mut Vec<String>,
) -> Result<Arc<Settings>, NeverRan> {
    let user = user_files
        .iter()
        .map(|file| profile::load(file))
        .collect::<Result<Vec<_>, _>>()?;
    let own_file = workspace.join(WORKSPACE_FILE);
    let own = match fs::symlink_metadata(&own_file) {
        Err(error) if paths::is_missing(&error) => None,
        _ if !request.mode.is_confined() => None,
        // A command could let it lead to a secret and read the error text.
        Ok(meta) if meta.is_symlink() => {
            return Err(NeverRan::refused(
                NeverRanCode::InvalidProfile,
                format!("{own_file:?} is a symbolic link"),
                "make it a regular file, or name the profile with --profile",
            ));
        }
        _ => Some(profile::load(&own_file)?),
    };
    let arguments = profile::Arguments {
        network: request.network,
        require: request.require,
    };
    let settings = profile::settle(request.mode, &user, arguments, own.as_deref())?;
    if !settings.ignored.is_empty() {
        warnings.push(format!(
            "ignored loosening settings from the workspace: {}",
            settings.ignored.join(", ")
        ));
    }
    if request.network == Some(Network::Host) && settings.network.value == Network::None {
        warnings.push(format!(
            "the network stays off although the caller asked for it: {} turns it off",
            settings.network.origin
        ));
    }
    Ok(settings)
}

/// The user's profiles that apply, weakest first: the standing one of the mode, when there is one, and
/// the one of the user's choice.
fn user_files(request: &PolicyRequest<'_>) -> Result<Vec<PathBuf>, NeverRan> {
    let standing = request
        .config_dir
        .as_ref()
        .map(|folder| folder.join(format!("cofferdam/{}.toml", request.mode)))
        .filter(|file| fs::symlink_metadata(file).is_ok());
    let chosen = request.profile.map(std::path::absolute).transpose();
    let chosen = chosen.map_err(|error| {
        NeverRan::refused(
            NeverRanCode::InvalidProfile,
            format!("the profile's path can't be resolved: {error}"),
            "name it by an absolute path",
        )
    })?;
    Ok(standing.into_iter().chain(chosen).collect())
}

/// Private to each session, wherever the host's own lead.
const SCRATCH: [&str; 3] = ["/tmp", "/dev/shm", "/run"];

/// A policy being built. Lists may hold a path twice; the first origin is the one that stays.
struct Builder {
    /// What `~` means first, then the account's own.
    homes: Vec<PathBuf>,
    workspace: PathBuf,
    roots: Vec<Place>,
    protected: Vec<Place>,
    absent: Vec<Place>,
    links: Vec<Place>,
    pinned: Vec<Place>,
    hidden: Vec<Place>,
    /// Git directories that are looked after, each for a folder that it serves.
    git_dirs: HashSet<(PathBuf, PathBuf)>,
    /// What isn't protected although it should be.
    gaps: Vec<String>,
    warnings: Vec<String>,
    /// What was looked up so far: a policy is about one moment.
    lookup: RefCell<Lookup>,
}

/// A path that the caller or a profile named, and where it leads.
struct Named {
    typed: PathBuf,
    path: PathBuf,
    links: Vec<PathBuf>,
    origin: Origin,
}

impl Builder {
    fn add_roots(
        &mut self,
        request: &PolicyRequest<'_>,
        workspace: Named,
        settings: &Settings,
    ) -> Result<(), NeverRan> {
        let mut named = vec![workspace];
        for typed in request.extra_writable {
            named.push(writable_root(typed.clone(), Origin::Argument)?);
        }
        for setting in &settings.writable {
            let typed = self.absolute(setting)?.swap_remove(0);
            named.push(writable_root(typed, setting.origin.clone())?);
        }
        let own_links = |root: &Named| {
            let inside = |link: &&PathBuf| named.iter().any(|other| is_below(link, &other.path));
            root.links.iter().find(inside).cloned()
        };
        for root in &named {
            let Some(link) = own_links(root) else {
                continue;
            };
            let harmless = named
                .iter()
                .any(|other| own_links(other).is_none() && root.path.starts_with(&other.path));
            if !harmless {
                return Err(behind_link(
                    &root.origin,
                    "writable root",
                    &root.typed,
                    &link,
                ));
            }
        }
        self.roots = named
            .into_iter()
            .map(|root| Place {
                path: root.path,
                origin: root.origin,
            })
            .collect();
        Ok(())
    }

    fn refuse_profiles_behind_links(&self, files: &[PathBuf]) -> Result<(), NeverRan> {
        for file in files {
            let links = self.links_of(file);
            if let Some(link) = links.iter().find(|link| self.root_above(link).is_some()) {
                return Err(behind_link(&Origin::Argument, "profile", file, link));
            }
        }
        Ok(())
    }

    /// A linked worktree and a submodule keep their git directory elsewhere. It becomes writable when both
    /// ends name each other, which only the user's own git can have arranged: the far end must lie outside
    /// of everything that a command can write.
    fn grant_git_directories(&mut self) {
        for root in self.roots.clone() {
            let DotGit::Pointer(pointer) = git::dot_git(&root.path) else {
                continue;
            };
            let reachable =
                |path: &Path| self.roots.iter().any(|root| path.starts_with(&root.path));
            if reachable(&pointer.common_dir) && reachable(&pointer.git_dir) {
                continue;
            }
            let sound = pointer.both_ends_agree
                && !reachable(&pointer.git_dir)
                && system_folder(&pointer.common_dir, &self.homes, Strictness::Root).is_none();
            if sound {
                self.roots.push(Place {
                    path: pointer.common_dir,
                    origin: Origin::GitWorktree,
                });
            } else {
                self.warnings.push(format!(
                    "git can't write here: {:?} names {:?}, which doesn't name it in turn",
                    root.path.join(".git"),
                    pointer.git_dir
                ));
            }
        }
    }

    /// The logs of sessions say which mode holds, wherever they are kept.
    fn protect_logs(&mut self, request: &PolicyRequest<'_>) {
        if let Some(home) = (request.variable)("DSH_HOME")
            && Path::new(&home).is_absolute()
        {
            self.protect(Path::new(&home), &Origin::Builtin);
        }
    }

    fn protect_names(
        &mut self,
        request: &PolicyRequest<'_>,
        settings: &Settings,
    ) -> Result<(), NeverRan> {
        let near = |home: &&PathBuf| {
            let mut roots = self.roots.iter().map(|root| &root.path);
            roots.any(|root| home.starts_with(root) || root.starts_with(home))
        };
        let others: Vec<PathBuf> = request.other_homes.iter().filter(near).cloned().collect();
        for setting in &settings.protected {
            let built_in = is_built_in(&setting.origin);
            let places = if is_relative(&setting.value) {
                // A root that git was granted is no folder of the user's.
                self.roots
                    .iter()
                    .filter(|root| root.origin != Origin::GitWorktree)
                    .map(|root| root.path.join(&setting.value))
                    .collect()
            } else {
                let mut places = self.absolute(setting)?;
                places.extend(others.iter().filter_map(|home| below_home(setting, home)));
                places
            };
            for place in places {
                let named_root = self.roots.iter().any(|root| root.path == place);
                // Whoever names `~/.config/nvim` as workspace means it.
                if !(built_in && named_root) {
                    self.protect(&place, &setting.origin);
                }
            }
        }
        Ok(())
    }

    /// Protects what git in and below the roots would run for the person outside.
    fn protect_git(&mut self, request: &PolicyRequest<'_>) {
        let global = self.global_git_configs(request);
        for root in self.roots.clone() {
            if !root.path.is_dir() {
                continue;
            }
            if git::is_git_dir(&root.path) {
                self.protect_git_dir(&root.path, &self.workspace.clone());
            }
            if root.origin == Origin::GitWorktree {
                continue;
            }
            let nested = git::nested_repositories(&root.path);
            self.gaps.extend(nested.unseen);
            for top in std::iter::once(root.path.clone()).chain(nested.paths) {
                self.protect_repository(&top);
                for (file, config) in &global {
                    self.protect_named_by_git(config, file, &top);
                }
            }
        }
    }

    fn protect_repository(&mut self, top: &Path) {
        let dot_git = top.join(".git");
        match git::dot_git(top) {
            DotGit::Nothing => {
                self.protect(&dot_git, &Origin::Builtin);
                if git::is_git_dir(top) {
                    self.protect_git_dir(top, top);
                }
            }
            DotGit::Folder(git_dir) => {
                let links = self.links_of(&dot_git);
                self.watch(&links, &Origin::Builtin);
                self.protect_git_dir(&git_dir, top);
                if let Some(common_dir) = git::redirected(&git_dir) {
                    self.warnings.push(format!(
                        "git in {top:?} takes hooks and configuration from {common_dir:?}, for a \
                         `commondir` leads there that git never writes: look at both before you use git \
                         there"
                    ));
                    self.protect_git_dir(&common_dir, top);
                }
            }
            DotGit::Pointer(pointer) => {
                self.protect(&dot_git, &Origin::Builtin);
                self.protect_git_dir(&pointer.git_dir, top);
                if pointer.common_dir != pointer.git_dir {
                    self.protect_git_dir(&pointer.common_dir, top);
                }
            }
        }
    }

    fn protect_git_dir(&mut self, git_dir: &Path, top: &Path) {
        let key = (git_dir.to_owned(), top.to_owned());
        if !self.is_reachable(git_dir) || !self.git_dirs.insert(key) {
            return;
        }
        if self.root_above(git_dir).is_some() {
            self.pinned.push(Place {
                path: git_dir.to_owned(),
                origin: Origin::Builtin,
            });
        }
        let sensitive = git::sensitive_paths(git_dir);
        self.gaps.extend(sensitive.unseen);
        for path in sensitive.paths {
            self.protect(&path, &Origin::Builtin);
            let name = path.file_name().unwrap_or_default();
            if name == "config" || name == "config.worktree" {
                for (file, config) in &self.configs(&path) {
                    self.protect_named_by_git(config, file, top);
                }
            }
        }
    }

    /// A git configuration with all that it includes.
    fn configs(&mut self, file: &Path) -> Vec<(PathBuf, git::Config)> {
        let home = self.homes.first().map(PathBuf::as_path);
        let (configs, cut) = git::config_with_includes(file, home);
        if cut {
            self.gaps.push(format!(
                "hooks and configuration that {file:?} names beyond its first includes"
            ));
        }
        configs
    }

    /// Protects the files that a git configuration names: hooks and further configuration.
    fn protect_named_by_git(&mut self, config: &git::Config, file: &Path, top: &Path) {
        let folder = file.parent().unwrap_or(Path::new("/"));
        let top = config
            .worktree
            .as_ref()
            .map_or_else(|| top.to_owned(), |worktree| folder.join(worktree));
        let hooks = config.hooks_paths.iter().map(|path| (path, top.as_path()));
        let includes = config.includes.iter().map(|path| (path, folder));
        if config.hooks_paths.len() + config.includes.len() > GIT_NAMES_AT_MOST {
            self.gaps.push(format!(
                "hooks and configuration that {file:?} names beyond the first {GIT_NAMES_AT_MOST}"
            ));
        }
        for (path, base) in hooks.chain(includes).take(GIT_NAMES_AT_MOST) {
            let path = git::expand(path, base, self.homes.first().map(PathBuf::as_path));
            let whole = self
                .existing(&path)
                .is_some_and(|path| self.roots.iter().any(|root| root.path.starts_with(&path)));
            if whole {
                self.warnings.push(format!(
                    "{file:?} names {path:?} for hooks, a whole writable root, so they aren't protected"
                ));
            } else {
                self.protect(&path, &Origin::Builtin);
            }
        }
    }

    /// The configuration that applies to each of the caller's repositories.
    fn global_git_configs(&mut self, request: &PolicyRequest<'_>) -> Vec<(PathBuf, git::Config)> {
        let files: Vec<_> = self
            .homes
            .first()
            .map(|home| home.join(".gitconfig"))
            .into_iter()
            .chain(
                request
                    .config_dir
                    .as_ref()
                    .map(|dir| dir.join("git/config")),
            )
            .chain([PathBuf::from("/etc/gitconfig")])
            .collect();
        files.iter().flat_map(|file| self.configs(file)).collect()
    }

    /// Protects one path, if it lies below a root: itself where it exists, what it leads to where it is
    /// a link, and its absence where there is nothing.
    fn protect(&mut self, path: &Path, origin: &Origin) {
        // What the caller can't look up, a command can't either.
        let probe = self.lookup.borrow_mut().probe(path);
        let Ok(Probe::Found(entry) | Probe::Missing(entry)) = &probe else {
            return;
        };
        self.watch(&entry.found.links, origin);
        if !self.is_reachable(&entry.found.path) {
            return;
        }
        let place = |path: PathBuf| Place {
            path,
            origin: origin.clone(),
        };
        match probe {
            Ok(Probe::Found(entry)) if entry.found.exists => {
                self.protected.push(place(entry.found.path.clone()));
            }
            Ok(Probe::Found(entry)) => self.absent.push(place(entry.found.path.clone())),
            Ok(Probe::Missing(folder)) => {
                let name = path.file_name().unwrap_or_default();
                self.absent.push(place(folder.found.path.join(name)));
            }
            Err(_) => {}
        }
    }

    /// Watches the links below roots: a mount can't hold them.
    fn watch(&mut self, links: &[PathBuf], origin: &Origin) {
        for path in links {
            if self.root_above(path).is_some() {
                self.links.push(Place {
                    path: path.clone(),
                    origin: origin.clone(),
                });
            }
        }
    }

    /// Whether a path is a root or lies below one.
    fn is_reachable(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(&root.path))
    }

    /// Keeps what an earlier policy of the session guarded: otherwise a command could push it out of what
    /// is looked at, or lead a link elsewhere. What a profile guarded counts while its line stands.
    fn remember(&mut self, earlier: &Policy, settings: &Settings) {
        let lists = [
            &settings.protected,
            &settings.hidden,
            &settings.hidden_variables,
        ];
        // Only asked for what is gone, which is nothing as a rule.
        let lines = LazyCell::new(|| -> HashSet<&Origin> {
            let lines = lists.into_iter().flatten();
            lines.map(|line| &line.origin).collect()
        });
        let stands = |place: &Place| match place.origin {
            Origin::Profile { .. } => lines.contains(&place.origin),
            Origin::Workspace | Origin::Argument | Origin::GitWorktree | Origin::Builtin => true,
        };
        let mut left = REMEMBERED_AT_MOST;
        let mut new = |now: &[Place], before: &[Place]| -> Vec<Place> {
            let known: HashSet<&OsStr> = now.iter().map(|place| place.path.as_os_str()).collect();
            let gone = before
                .iter()
                .filter(|place| !known.contains(place.path.as_os_str()) && stands(place));
            let kept: Vec<Place> = gone.take(left).cloned().collect();
            left -= kept.len();
            kept
        };
        let hidden = new(&self.hidden, &earlier.hidden);
        let protected = new(&self.protected, &earlier.protected);
        let pinned = new(&self.pinned, &earlier.pinned);
        let links = new(&self.links, &earlier.protected_links);
        let absent = new(&self.absent, &earlier.protected_absent);
        if left == 0 {
            self.gaps.push(format!(
                "more than {REMEMBERED_AT_MOST} places that were guarded before"
            ));
        }
        for place in hidden {
            let root = self.roots.iter().any(|root| root.path == place.path);
            if !root && place.path != self.workspace && self.is_canonical(&place.path) {
                self.push_hidden(place.path, &place.origin);
            }
        }
        for place in protected {
            if self.is_canonical(&place.path) {
                self.protect(&place.path, &place.origin);
            }
        }
        for place in pinned {
            if self.root_above(&place.path).is_some()
                && self.is_canonical(&place.path)
                && place.path.is_dir()
            {
                self.pinned.push(place);
            }
        }
        for place in links {
            self.watch(&[place.path], &place.origin);
        }
        // What has come meanwhile is protected from now on.
        for place in absent {
            let folder = place.path.parent();
            if folder.is_some_and(|folder| self.is_canonical(folder)) {
                self.protect(&place.path, &place.origin);
            }
        }
    }

    /// Whether a path exists and no link has been put in its way.
    fn is_canonical(&self, path: &Path) -> bool {
        self.existing(path).as_deref() == Some(path)
    }

    /// Every folder between a root and a protected or hidden path: renaming one away would free the name.
    fn pin(&mut self) {
        // Compared as bytes, for they are canonical.
        let shut: HashSet<&OsStr> = self
            .protected
            .iter()
            .chain(&self.hidden)
            .map(|place| place.path.as_os_str())
            .collect();
        let mut pins = Vec::new();
        let guarded = [&self.protected, &self.links, &self.pinned, &self.hidden];
        for place in guarded.into_iter().flatten() {
            let Some(root) = self.root_above(&place.path) else {
                continue;
            };
            let first = pins.len();
            for path in place.path.ancestors().skip(1) {
                if path == root {
                    break;
                }
                if shut.contains(path.as_os_str()) {
                    // It can't be moved, nor anything in it, and a pin there would make it writable.
                    pins.truncate(first);
                    continue;
                }
                pins.push(Place {
                    path: path.to_owned(),
                    origin: place.origin.clone(),
                });
            }
        }
        self.pinned.extend(pins);
    }

    /// Nothing that a git configuration or a workspace's file names opens a folder that is shut: a mount
    /// below a mask would show what it hides, and a pin in a protected folder would make it writable.
    fn keep_shut(&mut self) {
        let hidden: HashSet<OsString> = self
            .hidden
            .iter()
            .filter(|place| self.root_above(&place.path).is_some())
            .map(|place| place.path.clone().into_os_string())
            .collect();
        let roots: HashSet<&OsStr> = self
            .roots
            .iter()
            .map(|root| root.path.as_os_str())
            .collect();
        let is_shut = |place: &Place, shut: &HashSet<OsString>| {
            let above = place.path.ancestors().map(Path::as_os_str);
            let mut above = above.take_while(|path| !roots.contains(path));
            above.any(|path| shut.contains(path))
        };
        if !hidden.is_empty() {
            self.protected.retain(|place| {
                hidden.contains(place.path.as_os_str()) || !is_shut(place, &hidden)
            });
        }
        let mut shut = hidden;
        shut.extend(
            self.protected
                .iter()
                .map(|place| place.path.clone().into_os_string()),
        );
        self.pinned.retain(|place| !is_shut(place, &shut));
    }

    fn hide(&mut self, request: &PolicyRequest<'_>, settings: &Settings) -> Result<(), NeverRan> {
        // Most homes have few of all the names.
        let others: Vec<_> = request
            .other_homes
            .iter()
            .map(|home| (home, paths::names_in(home)))
            .collect();
        for setting in &settings.hidden {
            let first = home_relative(&setting.value)
                .and_then(|rest| rest.split('/').next())
                .map(OsStr::new);
            let may_hold = |names: &Option<Arc<HashSet<OsString>>>| match (names, first) {
                (Some(names), Some(first)) => names.contains(first),
                (None, _) | (_, None) => true,
            };
            let others = others
                .iter()
                .filter(|(_, names)| may_hold(names))
                .filter_map(|(home, _)| below_home(setting, home));
            for named in self.absolute(setting)?.into_iter().chain(others) {
                let Some(path) = self.existing(&named) else {
                    continue;
                };
                let links = self.links_of(&named);
                self.watch(&links, &setting.origin);
                if let Some(reason) = needed_by_all(&path) {
                    return Err(profile::wrong(
                        &setting.origin,
                        format!("{:?} would hide {path:?}, {reason}", setting.value),
                        "hide something narrower",
                    ));
                }
                let named = self.roots.iter().map(|root| &root.path);
                if named.chain([&self.workspace]).any(|root| *root == path) {
                    return Err(refused(
                        format!("{path:?} can't be worked in: {} hides it", setting.origin),
                        "choose another workspace, or unhide it in a profile of yours",
                    ));
                }
                self.push_hidden(path, &setting.origin);
            }
        }
        for setting in &settings.hidden_variables {
            let value = (request.variable)(&setting.value).unwrap_or_default();
            for path in paths_in(&value) {
                let Some(path) = self.existing(&path) else {
                    continue;
                };
                let mut kept = self.homes.iter().filter_map(|home| self.existing(home));
                let holds_more = kept.any(|home| home.starts_with(&path))
                    || self.workspace.starts_with(&path)
                    || self.roots.iter().any(|root| root.path.starts_with(&path))
                    || needed_by_all(&path).is_some();
                if !holds_more {
                    self.push_hidden(path, &setting.origin);
                }
            }
        }
        Ok(())
    }

    /// Hides the same files and folders where other mounts show them.
    fn hide_other_names(&mut self, mounts: &Mounts) {
        let mut left = OTHER_NAMES_AT_MOST;
        let mut cut = mounts.is_cut();
        for place in self.hidden.clone() {
            for path in mounts.other_names(&place.path) {
                let same = self.is_canonical(&path)
                    && !self.workspace.starts_with(&path)
                    && !self.roots.iter().any(|root| root.path.starts_with(&path))
                    && needed_by_all(&path).is_none();
                if !same {
                    continue;
                }
                if left == 0 {
                    cut = true;
                    break;
                }
                left -= 1;
                self.push_hidden(path, &place.origin);
            }
        }
        if cut {
            self.gaps
                .push("hidden paths under further names that mounts give them".to_owned());
        }
    }

    /// What lies in private scratch isn't there to be hidden, unless a root shows through.
    fn push_hidden(&mut self, path: PathBuf, origin: &Origin) {
        let private = SCRATCH.iter().any(|scratch| path.starts_with(scratch));
        if !private || self.root_above(&path).is_some() || path.starts_with(&self.workspace) {
            self.hidden.push(Place {
                path,
                origin: origin.clone(),
            });
        }
    }

    fn visible(&self, settings: &Settings) -> Result<Vec<Place>, NeverRan> {
        let mut found = Vec::new();
        for setting in &settings.visible {
            let path = self.absolute(setting)?.swap_remove(0);
            if !is_below(&path, Path::new("/run")) {
                return Err(profile::wrong(
                    &setting.origin,
                    format!("{:?} isn't below /run", setting.value),
                    "remove it: only /run is private, everything else is visible unless it is hidden",
                ));
            }
            let Some(target) = self.existing(&path) else {
                continue;
            };
            let path = if target.starts_with("/run") {
                target
            } else {
                path
            };
            found.push(Place {
                path,
                origin: setting.origin.clone(),
            });
        }
        Ok(found)
    }

    /// The paths that a written one means: several when `~` means several homes to a built-in list.
    fn absolute(&self, setting: &Setting<String>) -> Result<Vec<PathBuf>, NeverRan> {
        let text = setting.value.as_str();
        if home_relative(text).is_none() {
            return Ok(vec![self.workspace.join(text)]);
        }
        let homes = self.homes.iter();
        let places: Vec<_> = homes.filter_map(|home| below_home(setting, home)).collect();
        if places.is_empty() && !is_built_in(&setting.origin) {
            return Err(profile::wrong(
                &setting.origin,
                format!("{text:?} needs a home directory and there is none"),
                "set HOME, or write an absolute path",
            ));
        }
        Ok(places)
    }

    fn existing(&self, path: &Path) -> Option<PathBuf> {
        self.lookup.borrow_mut().existing(path)
    }

    fn links_of(&self, path: &Path) -> Vec<PathBuf> {
        let found = self.lookup.borrow_mut().resolve(path);
        found.map(|found| found.links).unwrap_or_default()
    }

    /// The deepest root strictly above a path.
    fn root_above(&self, path: &Path) -> Option<&Path> {
        self.roots
            .iter()
            .map(|root| root.path.as_path())
            .filter(|root| is_below(path, root))
            .max_by_key(|root| root.components().count())
    }
}

/// How many names of one git configuration are looked after.
const GIT_NAMES_AT_MOST: usize = 32;

/// How many places are kept that only an earlier policy of the session had.
const REMEMBERED_AT_MOST: usize = 2048;

/// How many further names of hidden places are hidden.
const OTHER_NAMES_AT_MOST: usize = 256;

/// What a written path names below a home, if it is about one.
fn home_relative(text: &str) -> Option<&str> {
    let rest = text
        .strip_prefix('~')
        .or_else(|| text.strip_prefix("$HOME"))?;
    Some(rest.trim_start_matches('/'))
}

fn below_home(setting: &Setting<String>, home: &Path) -> Option<PathBuf> {
    home_relative(&setting.value).map(|rest| home.join(rest))
}

fn workspace(request: &PolicyRequest<'_>) -> Result<Named, NeverRan> {
    let named = lookup("workspace", request.workspace.to_owned(), Origin::Workspace)?;
    if !named.path.is_dir() {
        return Err(refused(
            format!("workspace {:?} isn't a folder", named.typed),
            "name a folder with --workspace",
        ));
    }
    let reason = system_folder(&named.path, &homes(request), Strictness::Workspace);
    match reason.filter(|_| request.mode.is_confined()) {
        Some(reason) => Err(refused(
            format!("workspace {:?} is refused: {reason}", named.path),
            "use a folder of your own, such as a project below your home",
        )),
        None => Ok(named),
    }
}

fn writable_root(typed: PathBuf, origin: Origin) -> Result<Named, NeverRan> {
    let named = lookup("writable root", typed, origin)?;
    if !named.path.is_dir() && !named.path.is_file() {
        return Err(root_error(
            &named.origin,
            format!(
                "writable root {:?} is neither a folder nor a file",
                named.typed
            ),
            "name a folder or a regular file",
        ));
    }
    match system_folder(&named.path, &[], Strictness::Root) {
        Some(reason) => Err(root_error(
            &named.origin,
            format!("writable root {:?} is refused: {reason}", named.path),
            "name the folder below it that the command needs",
        )),
        None => Ok(named),
    }
}

fn lookup(what: &str, typed: PathBuf, origin: Origin) -> Result<Named, NeverRan> {
    let fail = |fact: String, remedy: &str| Err(root_error(&origin, fact, remedy));
    match paths::resolve(&typed) {
        Ok(found) if found.exists => Ok(Named {
            typed,
            path: found.path,
            links: found.links,
            origin,
        }),
        Ok(_) => fail(
            format!("{what} {typed:?} doesn't exist"),
            "create it or name another",
        ),
        Err(_) if !typed.is_absolute() => fail(
            format!("{what} {typed:?} isn't an absolute path"),
            "name it from the root",
        ),
        Err(error) => fail(
            format!("{what} {typed:?} can't be reached: {}", describe(&error)),
            "name a path that you can reach",
        ),
    }
}

/// How narrowly system folders are judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    /// A folder that commands work in: nothing of the system's own.
    Workspace,
    /// A root that someone names beside the workspace: only what no one can mean.
    Root,
}

/// Why a canonical path is no place for commands to write, if it isn't.
fn system_folder(path: &Path, homes: &[PathBuf], strictness: Strictness) -> Option<&'static str> {
    const WHOLE: &[(&str, &str)] = &[
        ("/", "it is the whole machine"),
        ("/home", "it holds the homes of all users"),
        (
            "/media",
            "it holds the disks that are mounted, not files of its own",
        ),
        (
            "/mnt",
            "it holds the disks that are mounted, not files of its own",
        ),
        ("/opt", "it holds the programs of the machine"),
        ("/root", "it is the home of root"),
        (
            "/run/media",
            "it holds the disks that are mounted, not files of its own",
        ),
        ("/srv", "it holds the data of all services"),
        (
            "/tmp",
            "it is shared by all users, and commands have a private one",
        ),
        (
            "/dev/shm",
            "it is shared by all users, and commands have a private one",
        ),
        ("/usr", "it holds the programs of the machine"),
        ("/usr/local", "it holds the programs of the machine"),
        ("/usr/local/src", "it holds the sources of all users"),
        ("/usr/src", "it holds the sources of all users"),
        ("/var", "it holds the state of the machine"),
        ("/var/cache", "it holds the state of the machine"),
        ("/var/lib", "it holds the state of the machine"),
        ("/var/log", "it holds the logs of the machine"),
        ("/var/mail", "it holds the mail of all users"),
        ("/var/opt", "it holds the state of the machine"),
        ("/var/spool", "it holds the state of the machine"),
        ("/var/tmp", "it is shared by all users"),
        ("/var/www", "it holds the sites of the machine"),
    ];
    const TREES: &[(&str, &str)] = &[
        ("/bin", "it holds the programs of the machine"),
        ("/boot", "it holds the kernel"),
        ("/etc", "it holds the settings of the machine"),
        ("/lib", "it holds the libraries of the machine"),
        ("/lib32", "it holds the libraries of the machine"),
        ("/lib64", "it holds the libraries of the machine"),
        ("/libx32", "it holds the libraries of the machine"),
        ("/sbin", "it holds the programs of the machine"),
        ("/usr/bin", "it holds the programs of the machine"),
        ("/usr/games", "it holds the programs of the machine"),
        ("/usr/include", "it holds the libraries of the machine"),
        ("/usr/lib", "it holds the libraries of the machine"),
        ("/usr/lib32", "it holds the libraries of the machine"),
        ("/usr/lib64", "it holds the libraries of the machine"),
        ("/usr/libexec", "it holds the programs of the machine"),
        ("/usr/libx32", "it holds the libraries of the machine"),
        ("/usr/local/bin", "it holds the programs of the machine"),
        ("/usr/local/etc", "it holds the settings of the machine"),
        (
            "/usr/local/include",
            "it holds the libraries of the machine",
        ),
        ("/usr/local/lib", "it holds the libraries of the machine"),
        ("/usr/local/sbin", "it holds the programs of the machine"),
        (
            "/usr/local/share",
            "it holds the data of the machine's programs",
        ),
        ("/usr/sbin", "it holds the programs of the machine"),
        ("/usr/share", "it holds the data of the machine's programs"),
    ];
    const KERNEL: &[(&str, &str)] = &[
        ("/dev", "it holds devices"),
        ("/proc", "it is a view of the kernel"),
        ("/run", "it holds the state of running services"),
        ("/sys", "it is a view of the kernel"),
    ];
    let reason = |list: &[(&str, &'static str)], holds: &dyn Fn(&Path) -> bool| {
        let found = list.iter().find(|(folder, _)| holds(Path::new(folder)));
        found.map(|(_, reason)| *reason)
    };
    let within = |folder: &Path| path.starts_with(folder);
    let itself = |folder: &Path| path == folder;
    if path != "/"
        && homes
            .iter()
            .any(|home| paths::existing(home).as_deref() == Some(path))
    {
        return reason(TREES, &within).or_else(|| reason(KERNEL, &within));
    }
    let shown_in_kernel_trees = path.starts_with("/dev/shm") || path.starts_with("/run/media");
    reason(WHOLE, &itself)
        .or_else(|| match strictness {
            Strictness::Workspace => reason(TREES, &within),
            Strictness::Root => reason(TREES, &itself),
        })
        .or_else(|| reason(KERNEL, &within).filter(|_| !shown_in_kernel_trees))
}

/// Why hiding a canonical path would leave no command able to start, if it would.
fn needed_by_all(path: &Path) -> Option<&'static str> {
    const NEEDED: &[&str] = &[
        "/bin",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/proc",
        "/sbin",
        "/sys",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/lib64",
        "/usr/sbin",
        "/tmp",
        "/run",
        "/nix/store",
    ];
    let needed = path == "/" || NEEDED.iter().any(|needed| path == *needed);
    needed.then_some("which every command needs")
}

fn unconfined(request: &PolicyRequest<'_>, workspace: PathBuf, settings: &Settings) -> Policy {
    Policy {
        mode: request.mode,
        workspace,
        home: request.home.clone(),
        writable: Vec::new(),
        protected: Vec::new(),
        protected_absent: Vec::new(),
        pinned: Vec::new(),
        protected_links: Vec::new(),
        hidden: Vec::new(),
        visible: Vec::new(),
        scratch: Vec::new(),
        network: Network::Host,
        refused_calls: Vec::new(),
        limits: super::Limits::default(),
        environment: environment(settings),
        require: Require::Partial,
        gaps: Vec::new(),
    }
}

fn environment(settings: &Settings) -> Environment {
    let names = |list: &[Setting<String>]| {
        let mut names: Vec<_> = list.iter().map(|name| name.value.clone()).collect();
        names.sort();
        names.dedup();
        names
    };
    Environment {
        remove: names(&settings.remove),
        keep: names(&settings.keep),
        set: settings
            .set
            .iter()
            .map(|(name, value)| (name.clone(), value.value.clone()))
            .collect(),
    }
}

fn homes(request: &PolicyRequest<'_>) -> Vec<PathBuf> {
    let mut homes: Vec<_> = request.home.iter().cloned().collect();
    homes.extend(request.account_home.iter().cloned());
    homes.dedup();
    homes
}

/// The absolute paths in a variable: `/a/path`, `unix:path=/a,guid=1;unix:…`, `unix:///a`, `/a,1,0`.
fn paths_in(value: &OsStr) -> Vec<PathBuf> {
    let parts = value.as_bytes().split(|byte| *byte == b';').take(8);
    parts
        .filter_map(|part| {
            let start = match part.windows(5).position(|word| word == b"path=") {
                Some(at) => at + 5,
                None => part
                    .strip_prefix(b"unix://")
                    .map_or_else(|| part.strip_prefix(b"unix:").map_or(0, |_| 5), |_| 7),
            };
            let path = part[start..].split(|byte| *byte == b',').next()?;
            path.starts_with(b"/")
                .then(|| PathBuf::from(OsString::from_vec(path.to_vec())))
        })
        .collect()
}

/// Sorted by path, each path once: the first that was added stays.
fn sorted(mut places: Vec<Place>) -> Vec<Place> {
    places.sort_by(|one, other| one.path.cmp(&other.path));
    places.dedup_by(|later, first| later.path == first.path);
    places
}

fn is_relative(text: &str) -> bool {
    !text.starts_with(['/', '~']) && text != "$HOME" && !text.starts_with("$HOME/")
}

fn is_built_in(origin: &Origin) -> bool {
    match origin {
        Origin::Profile { file, .. } => profile::BUILTIN_TEXTS.iter().any(|(name, _)| name == file),
        Origin::Builtin => true,
        Origin::Workspace | Origin::Argument | Origin::GitWorktree => false,
    }
}

fn is_below(path: &Path, folder: &Path) -> bool {
    path.starts_with(folder) && path != folder
}

fn behind_link(origin: &Origin, what: &str, typed: &Path, link: &Path) -> NeverRan {
    root_error(
        origin,
        format!(
            "{what} {typed:?} is reached through the link {link:?}, which a command could have made"
        ),
        "name the place that it should be, without a link inside a writable root",
    )
}

/// An error about a root: at its line when a profile names it.
fn root_error(origin: &Origin, fact: String, remedy: &str) -> NeverRan {
    match origin {
        Origin::Profile { .. } => profile::wrong(origin, fact, remedy),
        Origin::Workspace | Origin::Argument | Origin::GitWorktree | Origin::Builtin => {
            refused(fact, remedy)
        }
    }
}

fn refused(message: String, remedy: &str) -> NeverRan {
    NeverRan::refused(NeverRanCode::InvalidArgs, message, remedy)
}

fn describe(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || error.to_string(),
        |code| nix::errno::Errno::from_raw(code).desc().to_lowercase(),
    )
}

#[cfg(test)]
mod tests;
