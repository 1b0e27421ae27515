//! Scores the text classifier on recorded runs with true labels.
//!
//! Rule: the classifier sees what a harness would see (the command, its output, how it ended, the
//! policy, the disk) and never a label. Records without a label (two causes at once) are left out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mode::Mode;
use crate::outcome::Ended;
use crate::policy::{Environment, Limits, Network, Origin, Place, Policy, RefusedCalls, Require};

use super::{Class, Collector, Dialect, Disk, Fact, Inputs, Kind, Permission, Target, Wish, facts};

/// Why a corpus could not be scored.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// It could not be read.
    #[error("can't read line {line} of the corpus: {source}")]
    Read {
        /// The line, from 1.
        line: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is no record.
    #[error("line {line} of the corpus is no record: {source}")]
    Record {
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A record names a mode or backend that is unknown here.
    #[error("record {id} has the unknown {what} \"{value}\"")]
    Unknown {
        /// The record.
        id: String,
        /// `mode` or `backend`.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// The built-in description of the world is broken.
    #[error("the description of the corpus' world is broken: {0}")]
    World(String),
}

/// Counts of one set of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Denials that were called so.
    pub true_positives: usize,
    /// Own failures or successes that were called denials.
    pub false_positives: usize,
    /// Denials that were missed.
    pub false_negatives: usize,
    /// The rest.
    pub true_negatives: usize,
}

impl Counts {
    /// Right among what was called a denial.
    pub fn precision(&self) -> f64 {
        ratio(
            self.true_positives,
            self.true_positives + self.false_positives,
        )
    }

    /// Found among the denials.
    pub fn recall(&self) -> f64 {
        ratio(
            self.true_positives,
            self.true_positives + self.false_negatives,
        )
    }

    /// The harmonic mean of both.
    pub fn f1(&self) -> f64 {
        let (p, r) = (self.precision(), self.recall());
        if p + r > 0.0 {
            2.0 * p * r / (p + r)
        } else {
            0.0
        }
    }

    fn add(&mut self, label: bool, said: bool) {
        *match (label, said) {
            (true, true) => &mut self.true_positives,
            (false, true) => &mut self.false_positives,
            (true, false) => &mut self.false_negatives,
            (false, false) => &mut self.true_negatives,
        } += 1;
    }
}

/// How many of the true positives that have it got it right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Right.
    pub right: usize,
    /// Of so many.
    pub of: usize,
}

impl Share {
    fn add(&mut self, right: bool) {
        self.right += usize::from(right);
        self.of += 1;
    }
}

/// One run that was judged wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// The record.
    pub id: String,
    /// Whether it was a denial.
    pub denied: bool,
    /// Its exit status.
    pub exit: i32,
    /// The command, cut.
    pub command: String,
    /// The line that misled, of a false positive.
    pub line: Option<String>,
}

/// The score of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// By set: `all runs`, `failed runs`, and the failed ones of each backend.
    pub sets: BTreeMap<String, Counts>,
    /// Label (`none` without a denial) to predicted class (`none` without a fact) to runs.
    pub confusion: BTreeMap<String, BTreeMap<String, usize>>,
    /// Facts by evidence and confidence in runs that were denied, and in runs that weren't.
    pub evidence: BTreeMap<String, Counts>,
    /// Facts with exactly the labelled path.
    pub path_exact: Share,
    /// Facts with the labelled path's folder.
    pub path_folder: Share,
    /// Facts with the labelled cure.
    pub cure: Share,
    /// Records without a label.
    pub unlabelled: usize,
    /// What was judged wrongly.
    pub mistakes: Vec<Mistake>,
}

/// What the classifier says of one record, as `score` wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// The record.
    pub id: String,
    /// Whether there is any fact.
    pub denied: bool,
    /// The facts.
    pub denials: Vec<Fact>,
}

#[derive(Debug, Deserialize)]
struct Record {
    id: String,
    command: String,
    mode: String,
    backend: String,
    cwd: PathBuf,
    exit: i32,
    stdout: String,
    stderr: String,
    // The label: read by the scorer alone.
    denied: Option<bool>,
    kind: Option<String>,
    path: Option<String>,
    cure: Option<String>,
}

/// Judges each record of the corpus and compares it with its label; `each` gets every prediction.
pub fn score(
    corpus: impl BufRead,
    mut each: impl FnMut(&Prediction),
) -> Result<Report, CorpusError> {
    let world = World::builtin()?;
    let mut report = Report::default();
    for (at, line) in corpus.lines().enumerate() {
        let line = line.map_err(|source| CorpusError::Read {
            line: at + 1,
            source,
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let record: Record = serde_json::from_str(&line).map_err(|source| CorpusError::Record {
            line: at + 1,
            source,
        })?;
        let prediction = Prediction::of(&record, &world)?;
        each(&prediction);
        report.add(&record, &prediction);
    }
    Ok(report)
}

impl Prediction {
    fn of(record: &Record, world: &World) -> Result<Prediction, CorpusError> {
        let unknown = |what, value: &str| CorpusError::Unknown {
            id: record.id.clone(),
            what,
            value: value.to_owned(),
        };
        let backend = world
            .backends
            .get(&record.backend)
            .ok_or_else(|| unknown("backend", &record.backend))?;
        let (mode, network) = match record.mode.as_str() {
            "read-only" => (Mode::ReadOnly, Network::None),
            "workspace-write" => (Mode::WorkspaceWrite, Network::None),
            "workspace-write+network" => (Mode::WorkspaceWrite, Network::Host),
            other => return Err(unknown("mode", other)),
        };
        let policy = backend.policy(mode, network, &record.cwd);
        // Its private scratch is there in the wider mode whatever the backend.
        let wider = (mode == Mode::ReadOnly).then(|| Policy {
            scratch: vec!["/tmp".into(), "/dev/shm".into()],
            ..backend.policy(Mode::WorkspaceWrite, network, &record.cwd)
        });
        let condensed = |text: &str| {
            let mut collector = Collector::new();
            collector.feed(text.as_bytes());
            collector.finish()
        };
        let denials = facts(&Inputs {
            ended: if record.exit < 0 {
                Ended::Signalled(-record.exit)
            } else {
                Ended::Exited(record.exit)
            },
            command: &record.command,
            cwd: &record.cwd,
            variables: &world.variables,
            stdout: &condensed(&record.stdout),
            stderr: &condensed(&record.stderr),
            events: &[],
            policy: &policy,
            wider: wider.as_ref(),
            dialect: if record.backend == "landlock" {
                Dialect::Landlock
            } else {
                Dialect::Mounts
            },
            disk: world,
        });
        Ok(Prediction {
            id: record.id.clone(),
            denied: !denials.is_empty(),
            denials,
        })
    }
}

impl Report {
    fn add(&mut self, record: &Record, prediction: &Prediction) {
        let Some(label) = record.denied else {
            self.unlabelled += 1;
            return;
        };
        let said = prediction.denied;
        let mut count = |set: String| self.sets.entry(set).or_default().add(label, said);
        count("all runs".to_owned());
        if record.exit != 0 {
            count("failed runs".to_owned());
            count(format!("failed runs, {}", record.backend));
        }
        let kind = record
            .kind
            .as_deref()
            .filter(|_| label)
            .unwrap_or("none")
            .to_owned();
        let class = prediction
            .denials
            .first()
            .map_or("none".to_owned(), |fact| class_name(fact.class));
        *self
            .confusion
            .entry(kind.clone())
            .or_default()
            .entry(class)
            .or_default() += 1;
        for fact in &prediction.denials {
            let name = format!("{} {}", word(&fact.evidence), word(&fact.confidence));
            self.evidence.entry(name).or_default().add(label, true);
        }
        if label && said {
            if let Some(path) = record.path.as_deref().filter(|_| kind.starts_with("file")) {
                let path = Path::new(path);
                let paths = || {
                    prediction
                        .denials
                        .iter()
                        .filter_map(|fact| fact.path.as_deref())
                };
                self.path_exact.add(paths().any(|said| said == path));
                self.path_folder.add(
                    paths()
                        .any(|said| said.parent() == path.parent() || Some(said) == path.parent()),
                );
            }
            let cure = match record.cure.as_deref() {
                Some("full-access" | "danger-full-access") => Some(Mode::DangerFullAccess),
                Some("workspace-write") => Some(Mode::WorkspaceWrite),
                _ => None,
            };
            if cure.is_some() {
                self.cure.add(
                    prediction
                        .denials
                        .iter()
                        .any(|fact| fact.allowed_under == cure),
                );
            }
        }
        if label != said {
            self.mistakes.push(Mistake {
                id: record.id.clone(),
                denied: label,
                exit: record.exit,
                command: record.command.chars().take(110).collect(),
                line: prediction
                    .denials
                    .first()
                    .and_then(|fact| fact.line.clone()),
            });
        }
    }

    /// The report as a table for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |args: std::fmt::Arguments<'_>| {
            // Writing to a string can't fail.
            text.write_fmt(args).ok();
            text.push('\n');
        };
        for (name, c) in &self.sets {
            let total = c.true_positives + c.false_positives + c.false_negatives + c.true_negatives;
            line(format_args!(
                "{name:22} n={total:5} tp={:4} fp={:3} fn={:3} tn={:4}  precision {:.3}  recall {:.3}  F1 {:.3}",
                c.true_positives,
                c.false_positives,
                c.false_negatives,
                c.true_negatives,
                c.precision(),
                c.recall(),
                c.f1()
            ));
        }
        let share = |s: &Share| format!("{:.3} of {}", ratio(s.right, s.of), s.of);
        line(format_args!(
            "path exact {}, its folder {}, cure right {}, without a label {}",
            share(&self.path_exact),
            share(&self.path_folder),
            share(&self.cure),
            self.unlabelled
        ));
        line(format_args!("\nlabel by predicted class"));
        let classes: std::collections::BTreeSet<&str> = self
            .confusion
            .values()
            .flat_map(|row| row.keys().map(String::as_str))
            .collect();
        let head: String = classes.iter().map(|class| format!("{class:>12}")).collect();
        line(format_args!("{:12}{head}", ""));
        for (label, row) in &self.confusion {
            let cells: String = classes
                .iter()
                .map(|class| format!("{:12}", row.get(*class).copied().unwrap_or(0)))
                .collect();
            line(format_args!("{label:12}{cells}"));
        }
        line(format_args!("\nfacts by evidence"));
        for (name, c) in &self.evidence {
            line(format_args!(
                "{name:16} in denied runs {:4}, in others {:3}",
                c.true_positives, c.false_positives
            ));
        }
        text
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// The name that a value has in JSON.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn class_name(class: Class) -> String {
    word(&class)
}

// ---- the world of the corpus ----

#[derive(Debug, Deserialize)]
struct WorldFile {
    user: String,
    entries: Vec<String>,
    links: Vec<(PathBuf, PathBuf)>,
    mounts: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
    addresses: HashSet<SocketAddr>,
    datagrams: HashSet<SocketAddr>,
    sockets: HashSet<PathBuf>,
    variables: BTreeMap<String, String>,
    backends: HashMap<String, Backend>,
}

#[derive(Debug, Deserialize)]
struct Backend {
    read_only: Vec<PathBuf>,
    workspace_write: Vec<PathBuf>,
    scratch: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    refused_calls: Vec<String>,
}

impl Backend {
    fn policy(&self, mode: Mode, network: Network, workspace: &Path) -> Policy {
        let places = |paths: &[PathBuf], origin: Origin| -> Vec<Place> {
            paths
                .iter()
                .map(|path| Place {
                    path: path.clone(),
                    origin: origin.clone(),
                })
                .collect()
        };
        let (writable, scratch) = match mode {
            Mode::ReadOnly => (&self.read_only, Vec::new()),
            Mode::WorkspaceWrite | Mode::DangerFullAccess => {
                (&self.workspace_write, self.scratch.clone())
            }
        };
        Policy {
            mode,
            workspace: workspace.to_owned(),
            writable: places(writable, Origin::Workspace),
            protected: Vec::new(),
            pinned: Vec::new(),
            protected_links: Vec::new(),
            home: None,
            protected_absent: Vec::new(),
            hidden: places(&self.hidden, Origin::Builtin),
            visible: Vec::new(),
            scratch,
            network,
            refused_calls: vec![RefusedCalls {
                calls: self.refused_calls.clone(),
                errno: "EPERM".to_owned(),
                reason: "the corpus' filter".to_owned(),
            }],
            limits: Limits::default(),
            environment: Environment::default(),
            require: Require::Partial,
            gaps: Vec::new(),
        }
    }
}

/// The disk of the corpus: what `corpus_world.toml` lists.
struct World {
    nodes: HashMap<PathBuf, Node>,
    links: HashMap<PathBuf, PathBuf>,
    mounts: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
    addresses: HashSet<SocketAddr>,
    datagrams: HashSet<SocketAddr>,
    sockets: HashSet<PathBuf>,
    variables: Vec<(String, String)>,
    backends: HashMap<String, Backend>,
}

struct Node {
    /// Whether it belongs to the user who ran the commands.
    own: bool,
    mode: u32,
    kind: Kind,
    immutable: bool,
}

impl World {
    fn builtin() -> Result<World, CorpusError> {
        let file: WorldFile = toml::from_str(include_str!("corpus_world.toml"))
            .map_err(|error| CorpusError::World(error.to_string()))?;
        let mut nodes = HashMap::new();
        for entry in &file.entries {
            let broken = || CorpusError::World(format!("entry \"{entry}\""));
            let words: Vec<&str> = entry.split(' ').collect();
            let [owner, mode, kind, path, ref flags @ ..] = words[..] else {
                return Err(broken());
            };
            let kind = match kind {
                "folder" => Kind::Folder,
                "file" => Kind::File,
                "special" => Kind::Special,
                _ => return Err(broken()),
            };
            let mode = u32::from_str_radix(mode, 8).map_err(|_| broken())?;
            nodes.insert(
                PathBuf::from(path),
                Node {
                    own: owner == file.user,
                    mode,
                    kind,
                    immutable: flags == ["fixed"],
                },
            );
        }
        Ok(World {
            nodes,
            links: file.links.into_iter().collect(),
            mounts: file.mounts,
            read_only: file.read_only,
            addresses: file.addresses,
            datagrams: file.datagrams,
            sockets: file.sockets,
            variables: file.variables.into_iter().collect(),
            backends: file.backends,
        })
    }

    fn searchable(&self, path: &Path) -> bool {
        path.ancestors()
            .skip(1)
            .filter_map(|folder| self.nodes.get(folder))
            .all(|node| node.may(1))
    }

    fn is_read_only(&self, path: &Path) -> bool {
        self.read_only.iter().any(|mount| path.starts_with(mount))
    }
}

impl Node {
    fn may(&self, bit: u32) -> bool {
        let shift = if self.own { 6 } else { 0 };
        self.mode >> shift & bit != 0
    }
}

impl Disk for World {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut resolved = PathBuf::new();
        for part in path.components() {
            if part == Component::ParentDir {
                resolved.pop();
            } else if part != Component::CurDir {
                resolved.push(part);
            }
            if let Some(target) = self.links.get(&resolved) {
                resolved.clone_from(target);
            }
        }
        Some(resolved)
    }

    fn permits(&self, path: &Path, wish: Wish) -> Permission {
        let node = self.nodes.get(path);
        let folder = path.parent().and_then(|folder| self.nodes.get(folder));
        let folder_writable = folder
            .is_some_and(|folder| folder.kind == Kind::Folder && folder.may(2) && folder.may(1));
        let fixed = self.is_read_only(path) || node.is_some_and(|node| node.immutable);
        let allowed = self.searchable(path)
            && match (wish, node) {
                (Wish::Read, Some(node)) => node.may(4),
                (Wish::Execute, Some(node)) => node.may(1) && node.kind == Kind::File,
                (Wish::Read | Wish::Execute | Wish::Metadata, None) => false,
                (Wish::Write, Some(node)) => node.kind != Kind::Folder && node.may(2) && !fixed,
                (Wish::Write, None) => folder_writable && !fixed,
                (Wish::Name, node) => {
                    let sticky =
                        folder.is_some_and(|folder| folder.mode & 0o1000 != 0 && !folder.own);
                    folder_writable && !fixed && node.is_none_or(|node| node.own || !sticky)
                }
                (Wish::Metadata, Some(node)) => node.own && !fixed,
            };
        if allowed {
            Permission::Allowed
        } else {
            Permission::Refused
        }
    }

    fn listens(&self, target: &Target) -> bool {
        match target {
            Target::Inet {
                address,
                datagram: false,
            } => self.addresses.contains(address),
            Target::Inet {
                address,
                datagram: true,
            } => self.datagrams.contains(address),
            Target::SocketPath(path) => {
                use std::os::unix::ffi::OsStrExt;
                self.sockets
                    .contains(Path::new(std::ffi::OsStr::from_bytes(path)))
            }
            Target::SocketName(_) => false,
        }
    }

    fn kind(&self, path: &Path) -> Kind {
        self.nodes.get(path).map_or(Kind::Missing, |node| node.kind)
    }

    fn device(&self, path: &Path) -> Option<u64> {
        let mount = path
            .ancestors()
            .find_map(|part| self.mounts.iter().position(|mount| mount == part));
        Some(mount.map_or(0, |at| at as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"id":"a.ww.erofs","command":"touch ~/t","mode":"workspace-write","backend":"erofs","cwd":"/tmp/ws","exit":1,"stdout":"","stderr":"touch: cannot touch '/home/agent/t': Read-only file system\n","denied":true,"kind":"file-write","path":"/home/agent/t","cure":"full-access"}"#,
        "\n",
        r#"{"id":"b.ww.landlock","command":"cat secret000","mode":"workspace-write","backend":"landlock","cwd":"/tmp/ws","exit":1,"stdout":"","stderr":"cat: secret000: Permission denied\n","denied":false,"kind":null,"path":null,"cure":null}"#,
        "\n\n",
        r#"{"id":"c.ro.erofs","command":"rm -f ~/x 2>/dev/null","mode":"read-only","backend":"erofs","cwd":"/tmp/ws","exit":1,"stdout":"","stderr":"","denied":true,"kind":"file-write","path":"/home/agent/x","cure":"full-access"}"#,
        "\n",
        r#"{"id":"d.ww.erofs","command":"x","mode":"workspace-write","backend":"erofs","cwd":"/tmp/ws","exit":1,"stdout":"","stderr":"","denied":null,"kind":null,"path":null,"cure":null}"#,
        "\n",
    );

    #[test]
    fn each_record_is_counted_once_and_without_a_label_not_at_all() {
        let mut said = Vec::new();
        let report = score(SAMPLE.as_bytes(), |prediction| {
            said.push((prediction.id.clone(), prediction.denied))
        })
        .unwrap();
        let expected = [
            ("a.ww.erofs", true),
            ("b.ww.landlock", false),
            ("c.ro.erofs", false),
            ("d.ww.erofs", false),
        ];
        assert_eq!(said, expected.map(|(id, denied)| (id.to_owned(), denied)));
        let counts = Counts {
            true_positives: 1,
            false_positives: 0,
            false_negatives: 1,
            true_negatives: 1,
        };
        assert_eq!(report.sets["all runs"], counts);
        assert_eq!(
            report.sets["failed runs, landlock"],
            Counts {
                true_negatives: 1,
                ..Counts::default()
            }
        );
        assert_eq!(
            (report.path_exact, report.path_folder, report.cure),
            (
                Share { right: 1, of: 1 },
                Share { right: 1, of: 1 },
                Share { right: 1, of: 1 }
            )
        );
        assert_eq!(
            (
                report.unlabelled,
                report.mistakes.len(),
                report.mistakes[0].id.as_str()
            ),
            (1, 1, "c.ro.erofs")
        );
        assert!(report.text().starts_with(
            "all runs               n=    3 tp=   1 fp=  0 fn=  1 tn=   1  precision 1.000  recall 0.500  F1 0.667\n"
        ));
    }

    #[test]
    fn a_broken_record_is_named_by_its_line_and_an_unknown_mode_by_its_id() {
        let error = |text: &str| score(text.as_bytes(), |_| ()).unwrap_err().to_string();
        assert!(error("\n{").starts_with("line 2 of the corpus is no record: "));
        assert_eq!(
            error(&SAMPLE.replace("read-only\",\"backend", "sudo\",\"backend")),
            "record c.ro.erofs has the unknown mode \"sudo\""
        );
    }

    #[test]
    #[ignore = "needs COFFERDAM_CORPUS, the path of a corpus"]
    fn the_score_of_the_corpus_is_printed() {
        let path = std::env::var("COFFERDAM_CORPUS").unwrap();
        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        let mut predictions = String::new();
        let report = score(file, |p| {
            predictions += &(serde_json::to_string(p).unwrap() + "\n")
        })
        .unwrap();
        for m in &report.mistakes {
            println!(
                "{} {:22} exit {:3} {}\n      {:?}",
                if m.denied { "fn" } else { "fp" },
                m.id,
                m.exit,
                m.command,
                m.line
            );
        }
        println!("{}", report.text());
        if let Ok(out) = std::env::var("COFFERDAM_PREDICTIONS") {
            std::fs::write(out, predictions).unwrap();
        }
    }
}
