//! temporary
use crate::cell::*;
use crate::plan::*;
use crate::policy::*;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
#[allow(missing_docs, clippy::all)]
pub fn go(text: &str, n: usize) {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    rt.block_on(async {
        let ws = std::env::current_dir().unwrap();
        let facts = crate::host::facts::HostFacts::read();
        let place = |p: &str| Place {
            path: PathBuf::from(p),
            origin: Origin::Builtin,
        };
        let policy = Policy {
            mode: crate::mode::Mode::WorkspaceWrite,
            workspace: ws.clone(),
            writable: vec![Place {
                path: ws.clone(),
                origin: Origin::Workspace,
            }],
            protected: vec![],
            protected_absent: vec![], protected_links: vec![], home: None,
            pinned: vec![],
            hidden: vec![place("/etc/apt")],
            visible: vec![],
            scratch: ["/tmp", "/dev/shm", "/run"]
                .iter()
                .map(PathBuf::from)
                .collect(),
            network: Network::None,
            refused_calls: vec![
                RefusedCalls {
                    calls: ["bpf", "mount", "io_uring_setup", "add_key"]
                        .iter()
                        .map(|s| s.to_string())
                        .collect(),
                    errno: "EPERM".into(),
                    reason: "".into(),
                },
                RefusedCalls {
                    calls: vec!["clone3".into()],
                    errno: "ENOSYS".into(),
                    reason: "".into(),
                },
            ],
            limits: Limits::default(),
            environment: Environment::default(),
            require: Require::Partial,
        };
        let mut ids = Identities::new();
        for p in policy.writable.iter().chain(&policy.hidden) {
            use std::os::unix::fs::MetadataExt;
            let m = std::fs::symlink_metadata(&p.path).unwrap();
            ids.insert(
                p.path.clone(),
                Identity {
                    device: m.dev(),
                    inode: m.ino(),
                    folder: m.is_dir(),
                    owner: m.uid(),
                },
            );
        }
        let planned = plan(&policy, &ids, &facts, Path::new("/nonexistent")).unwrap();
        let mut planned = planned;
        let off = std::env::var("OFF").unwrap_or_default();
        if off.contains('l') {
            planned.plan.landlock = None;
        }
        if off.contains('f') {
            planned.plan.filters.clear();
        }
        if off.contains('s') {
            planned.plan.supervised = None;
        }
        let cell = Cell::start(
            Path::new("/proc/self/exe"),
            &SetUp {
                namespaces: true,
                prepare: n > 1,
                own_network: true,
                uid: facts.uid,
                gid: facts.gid,
            },
        )
        .unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let out = std::io::stdout();
        let err = std::io::stderr();
        let c = |s: &str| CString::new(s).unwrap();
        let mut t = vec![];
        for _ in 0..n {
            let start = std::time::Instant::now();
            let launch = Launch {
                plan: planned.plan.clone(),
                spill: None,
                candidates: vec![c("/bin/bash")],
                argv: vec![c("bash"), c("-c"), c(text)],
                env: std::env::vars()
                    .map(|(k, v)| c(&format!("{k}={v}")))
                    .collect(),
                workdir: CString::new(ws.as_os_str().as_encoded_bytes()).unwrap(),
                script_at: None,
            };
            let control = cell
                .launch(
                    &launch,
                    &Incoming {
                        stdin: null.as_fd(),
                        stdout: out.as_fd(),
                        stderr: err.as_fd(),
                        script: None,
                    },
                )
                .unwrap();
            loop {
                let r = control.next().await;
                if n == 1 {
                    eprintln!("{:?} {r:?}", start.elapsed());
                }
                match r {
                    None | Some(Report::Exited { .. }) | Some(Report::Failed(_)) => break,
                    _ => {}
                }
            }
            t.push(start.elapsed());
        }
        t.sort();
        eprintln!("median {:?}", t[n / 2]);
        let mut t = vec![];
        for _ in 0..n {
            let start = std::time::Instant::now();
            std::process::Command::new("/bin/bash")
                .arg("-c")
                .arg(text)
                .status()
                .unwrap();
            t.push(start.elapsed());
        }
        t.sort();
        eprintln!("plain median {:?}", t[n / 2]);
        cell.end().await;
    });
}
