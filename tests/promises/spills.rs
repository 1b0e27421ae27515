//! Output that is longer than its tail: the copy on disk, who sees it, and what becomes of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cofferdam::executor::{Confined, Executor, Settings};
use cofferdam::outcome::Ended;
use cofferdam::output::SpillCaps;

use crate::sessions::{Bench, bench_with};
use crate::world::{World, ordinary, root};

fn base_of_spills(world: &World) -> PathBuf {
    let base = world.base().join("home/spill");
    fs::create_dir_all(&base).unwrap();
    base
}

fn spilling(world: &World) -> Bench<Confined> {
    let base = base_of_spills(world);
    bench_with(world, |settings| {
        settings.tail_bytes = 1000;
        settings.spill_base = base;
    })
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_spill_is_whole_private_readable_inside_and_gone_with_the_session() {
    ordinary(|world| {
        let bench = spilling(world);
        world.block_on(async {
            let done = bench.sh("a", "seq 1 20000").await;
            assert!(done.stdout.truncated);
            let path = done.stdout.spill.clone().unwrap();
            let expected: String = (1..=20000).map(|n| format!("{n}\n")).collect();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
            assert_eq!(
                (mode_of(&path), mode_of(path.parent().unwrap())),
                (0o600, 0o700)
            );

            let shown = path.display();
            assert_eq!(
                bench.sh("a", &format!("wc -l < {shown}")).await.stdout.text,
                "20000\n"
            );
            for text in [
                format!("echo x >> {shown}"),
                format!("rm -f {shown}"),
                format!("touch {shown}.2"),
                format!("chmod 0644 {shown}"),
                format!("mv {} /tmp/x", path.parent().unwrap().display()),
            ] {
                let denied = bench.sh("a", &text).await;
                assert!(!denied.ended.success(), "{text}: {denied:?}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);

            bench.executor.end_session("a").await;
            assert!(!path.exists() && !path.parent().unwrap().exists());
            bench.executor.shutdown().await;
            assert_eq!(fs::read_dir(base_of_spills(world)).unwrap().count(), 0);
        });
    });
}

#[test]
fn a_spill_below_tmp_shows_at_its_own_path_in_the_private_tmp() {
    ordinary(|world| {
        let bench = bench_with(world, |settings| settings.tail_bytes = 1000);
        world.block_on(async {
            let done = bench.sh("a", "seq 1 20000").await;
            let path = done.stdout.spill.unwrap();
            assert!(path.starts_with("/tmp"), "{path:?}");
            let text = format!(
                "wc -l < {0}; ls /tmp | wc -l; echo x >> {0}",
                path.display()
            );
            let inside = bench.sh("a", &text).await;
            assert_eq!(inside.stdout.text, "20000\n1\n");
            assert!(!inside.ended.success());
            bench.executor.shutdown().await;
            assert!(!path.exists());
        });
    });
}

#[test]
fn spills_of_other_sessions_are_not_visible() {
    ordinary(|world| {
        let bench = bench_with(world, |settings| settings.tail_bytes = 1000);
        world.block_on(async {
            let done = bench.sh("a", "seq 1 20000").await;
            let path = done.stdout.spill.unwrap();
            let read = format!("wc -l < {}", path.display());
            let other = bench.sh("b", &read).await;
            assert_eq!(
                (other.ended, other.stdout.text.as_str()),
                (Ended::Exited(1), "")
            );
            assert_eq!(bench.sh("a", &read).await.stdout.text, "20000\n");
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_command_can_not_turn_the_next_spill_into_a_write_elsewhere() {
    ordinary(|world| {
        let victim = world.outside().join("victim");
        fs::write(&victim, "kept").unwrap();
        let bench = spilling(world);
        world.block_on(async {
            let first = bench.sh("a", "seq 1 20000").await.stdout.spill.unwrap();
            let folder = first.parent().unwrap();
            let attack = format!(
                "rm -rf {0}; ln -s {1} {0}; ln -sf {2} {3}; mv {0} {0}.old; true",
                folder.display(),
                world.outside().display(),
                victim.display(),
                first.display()
            );
            bench.sh("a", &attack).await;
            let second = bench.sh("a", "seq 1 20000").await;
            let path = second.stdout.spill.unwrap();
            assert_eq!(path.parent(), Some(folder));
            assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
            assert_eq!(fs::read_dir(world.outside()).unwrap().count(), 1);
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_task_that_reads_its_own_copy_stays_bounded() {
    ordinary(|world| {
        let base = base_of_spills(world);
        let bench = bench_with(world, |settings| {
            settings.tail_bytes = 1000;
            settings.spill_base = base.clone();
            settings.spill_caps = SpillCaps {
                file: 200_000,
                session: 400_000,
            };
        });
        world.block_on(async {
            bench.sh("a", "seq 1 2000").await;
            let done = bench
                .sh(
                    "a",
                    &format!("timeout 2 tail -n +1 -f {}/*/*; seq 1 2000", base.display()),
                )
                .await;
            assert!(done.stdout.truncated);
            let held: u64 = walk(&base)
                .iter()
                .map(|path| fs::metadata(path).unwrap().len())
                .sum();
            assert!(held <= 400_000, "{held}");
            bench.executor.shutdown().await;
        });
    });
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn the_program_leaves_a_spill_to_its_caller_and_names_it() {
    ordinary(|world| {
        let done = world.write("head -c 9000000 /dev/zero");
        assert_eq!(done.status, 0);
        assert_eq!(
            (
                &done.json["stdout"]["truncated"],
                &done.json["stdout"]["bytes"]
            ),
            (&true.into(), &9_000_000.into())
        );
        let path = PathBuf::from(done.json["stdout"]["spillPath"].as_str().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 9_000_000);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let short = world.write("echo short");
        assert!(short.json["stdout"]["spillPath"].is_null());
    });
}

#[test]
fn a_full_disk_takes_the_copy_and_not_the_command() {
    root(|world| {
        let base = base_of_spills(world);
        world.host(&format!(
            "mount -t tmpfs -o size=100k tmpfs {}",
            base.display()
        ));
        let bench = spilling(world);
        world.block_on(async {
            let done = bench.sh("a", "seq 1 100000; echo end").await;
            assert!(done.ended.success());
            assert_eq!(
                (done.stdout.truncated, done.stdout.spill.clone()),
                (true, None)
            );
            assert!(done.stdout.text.ends_with("100000\nend\n"));
            let small = bench.sh("a", "seq 1 1000").await;
            assert!(small.stdout.spill.is_some(), "{small:?}");
            bench.executor.shutdown().await;
        });
        world.host(&format!("umount {}", base.display()));
    });
}

#[test]
fn spill_settings_are_those_of_the_contract() {
    let settings = Settings::default();
    assert_eq!(settings.tail_bytes, 64_000);
    assert_eq!(settings.grace.as_millis(), 3_000);
    assert_eq!(settings.default_timeout.as_millis(), 120_000);
    assert_eq!(settings.max_timeout.as_millis(), 600_000);
}
