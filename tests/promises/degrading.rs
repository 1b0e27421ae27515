//! Weaker hosts: what can't be had is told, or the command is refused; nothing runs unconfined.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use cofferdam::host::facts::HostFacts;
use cofferdam::mode::Mode;
use cofferdam::plan::{Identities, Identity, Level, plan};
use cofferdam::policy::Policy;
use cofferdam::policy::build::PolicyRequest;

use crate::world::{Done, World, ordinary};

/// Runs the program where this user can make no user namespace: in one that was the last allowed.
fn without_namespaces(world: &World, args: &[&str], text: &str) -> Done {
    world.needs("unshare");
    // Of the files there only this user's own have an owner.
    let program = world.home().join("cofferdam");
    fs::copy(world.program(), &program).unwrap();
    let call = world.call("workspace-write").args(args).args(["-c", text]);
    let nest =
        "echo 1 > /proc/sys/user/max_user_namespaces && exec unshare -U --map-user=1000 \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["-Ur", "sh", "-c", nest, "-"])
        .arg(program)
        .args(call.command().get_args());
    Done::new(command.output().unwrap())
}

#[test]
fn without_namespaces_landlock_alone_confines_and_says_what_is_missing() {
    ordinary(|world| {
        let done = without_namespaces(
            world,
            &[],
            &format!(
                "echo x > f; cat f; echo x > {}/f",
                world.outside().display()
            ),
        );
        assert!(done.failed().contains("Permission denied"), "{done}");
        assert_eq!(done.out(), "x");
        assert!(!world.outside().join("f").exists());
        assert_eq!(done.json["sandbox"]["enforcement"], "partial");
        assert_eq!(
            done.json["sandbox"]["missing"],
            serde_json::json!([
                "changes of mode, owner, times and attributes of files outside",
                "the host's processes, /tmp, /dev/shm and /run can be seen",
                "the caller's System V and POSIX message queues, semaphores and shared memory",
                "hidden paths can be read"
            ])
        );
        assert_eq!(done.facts().len(), 1, "{done}");
        assert_eq!(world.write("true").json["sandbox"]["enforcement"], "full");
    });
}

#[test]
fn without_namespaces_a_policy_that_requires_everything_runs_nothing() {
    ordinary(|world| {
        let profile = world.home().join("p.toml");
        fs::write(&profile, "require = \"full\"\n").unwrap();
        let args = ["--profile", profile.to_str().unwrap()];
        let done = without_namespaces(world, &args, "touch ran");
        let error = done.refused();
        assert_eq!(error["code"], "SANDBOX_UNAVAILABLE");
        assert!(
            error["message"].as_str().unwrap().starts_with(
                "the policy requires full enforcement, and this host doesn't govern: "
            ),
            "{error}"
        );
        assert!(!world.workspace().join("ran").exists());
        world
            .call("workspace-write")
            .args(args)
            .sh("touch ran")
            .ok();
    });
}

#[test]
fn without_namespaces_nothing_is_left_of_a_command_either() {
    ordinary(|world| {
        let mark = format!("m{}", std::process::id());
        let done = without_namespaces(
            world,
            &["--timeout-ms", "500", "--env", &format!("MARK={mark}")],
            "trap '' TERM; (setsid sleep 300 &); sleep 300",
        );
        assert_eq!(done.status, 124, "{done}");
        let left: Vec<_> = crate::world::processes()
            .into_iter()
            .filter(|pid| crate::world::has_variable(*pid, &format!("MARK={mark}")))
            .collect();
        assert_eq!(left, []);
    });
}

#[test]
fn inside_itself_a_command_gets_only_stricter() {
    ordinary(|world| {
        let program = world.program().display();
        let outside = world.outside().display().to_string();
        let inner =
            format!("{program} run --quiet --mode danger-full-access -c 'echo x > {outside}/f'");
        let done = world.write(&inner);
        assert!(done.failed().ends_with("Read-only file system"), "{done}");
        let inner = format!(
            "{program} run --json --mode workspace-write -c 'echo x > f; echo x > {outside}/f'"
        );
        let done = world.write(&inner);
        assert!(!world.outside().join("f").exists());
        let told: serde_json::Value =
            serde_json::from_str(done.out()).unwrap_or_else(|_| panic!("{done}"));
        // Either it runs under what there is, and says so, or nothing ran.
        if told["error"].is_null() {
            assert_eq!(
                (&told["exitCode"], &told["sandbox"]["enforcement"]),
                (&1.into(), &"partial".into())
            );
            assert!(world.workspace().join("f").exists());
        } else {
            assert_eq!(told["error"]["code"], "SANDBOX_UNAVAILABLE");
        }
    });
}

#[test]
fn what_an_old_landlock_does_not_govern_the_mounts_still_do() {
    ordinary(|world| {
        let workspace = world.workspace();
        let (policy, _) =
            Policy::build(&PolicyRequest::new(Mode::WorkspaceWrite, &workspace)).unwrap();
        let mut identities = Identities::new();
        for place in policy.writable.iter().chain(&policy.hidden) {
            let facts = fs::symlink_metadata(&place.path).unwrap();
            identities.insert(
                place.path.clone(),
                Identity {
                    device: facts.dev(),
                    inode: facts.ino(),
                    folder: facts.is_dir(),
                    owner: facts.uid(),
                },
            );
        }
        let planned = |landlock_abi| {
            let facts = HostFacts {
                landlock_abi,
                ..HostFacts::read()
            };
            plan(&policy, &identities, &facts, Path::new("")).unwrap()
        };
        let newest = planned(9);
        for abi in 0..9 {
            let older = planned(abi);
            assert_eq!(older.plan.view, newest.plan.view, "ABI {abi}");
            let told = older.plan.landlock.map_or(0, |landlock| landlock.abi);
            assert!(told == abi || told == 0, "ABI {abi}: {told}");
        }
        assert_eq!(newest.enforcement.level, Level::Full);
        assert_eq!(planned(0).enforcement.level, Level::Partial);
    });
}
