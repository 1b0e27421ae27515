//! The network: what is reached, by address, by name and by path.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use crate::world::{World, anyone, ordinary};

/// Connects to a socket by path, or by abstract name after an `@`, and prints the errno or 0.
const CONNECT: &str = r#"
    (my $name = $ARGV[0]) =~ s/^@/\0/;
    socket my $s, AF_UNIX, SOCK_STREAM, 0 or die $!;
    print connect($s, pack("Sa*", AF_UNIX, $name)) ? 0 : $! + 0;
"#;

fn connect(world: &World, mode: &str, args: &[&str], name: &str) -> i32 {
    let done = world.call(mode).args(args).perl(CONNECT, &[name]);
    done.ok().parse().unwrap()
}

#[test]
fn loopback_of_the_host_is_not_reached_and_the_sessions_own_works() {
    anyone(|world| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let host = listener.local_addr().unwrap();
            let code = r#"
                use IO::Socket::IP;
                my $s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1]);
                print $s ? 0 : $! + 0;
            "#;
            let (ip, port) = (host.ip().to_string(), host.port().to_string());
            let reach = |args: &[&str]| {
                let call = world.call("workspace-write").args(args);
                call.perl(code, &[&ip, &port]).ok().to_owned()
            };
            assert_eq!(reach(&[]), libc::ECONNREFUSED.to_string());
            assert_eq!(reach(&["--network", "host"]), "0");
        }
        let own = r#"
            use IO::Socket::IP;
            for my $host ("127.0.0.1", "::1") {
                my $l = IO::Socket::IP->new(LocalHost => $host, LocalPort => 0, Listen => 1, Type => SOCK_STREAM) or die "$host $@";
                my $c = IO::Socket::IP->new(PeerHost => $host, PeerPort => $l->sockport) or die "$host $@";
                print "$host\n";
            }
        "#;
        assert_eq!(
            world.call("read-only").perl(own, &[]).ok(),
            "127.0.0.1\n::1"
        );
    });
}

#[test]
fn datagrams_leave_no_session() {
    ordinary(|world| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let port = socket.local_addr().unwrap().port();
        let text = format!("echo from-inside > /dev/udp/127.0.0.1/{port}; true");
        let mut buffer = [0; 64];
        world.write(&text).ok();
        assert!(socket.recv(&mut buffer).is_err());
        world
            .call("workspace-write")
            .args(["--network", "host"])
            .sh(&text)
            .ok();
        assert_eq!(socket.recv(&mut buffer).unwrap(), 12);
    });
}

#[test]
fn there_is_no_interface_but_loopback_and_no_route() {
    anyone(|world| {
        let text = "tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route | wc -l";
        assert_eq!(world.write(text).ok(), "    lo\n0");
        let denied = world.write("exec 3<>/dev/tcp/192.0.2.1/80");
        assert!(
            denied.failed().ends_with("Network is unreachable"),
            "{denied}"
        );
    });
}

#[test]
fn a_socket_by_path_outside_is_not_reached() {
    ordinary(|world| {
        for folder in [world.outside(), world.workspace(), world.home()] {
            let path = folder.join("service.sock");
            let _listener = UnixListener::bind(&path).unwrap();
            let path = path.to_str().unwrap();
            for network in ["none", "host"] {
                let found = connect(world, "workspace-write", &["--network", network], path);
                assert_eq!(found, libc::EACCES, "{path} with network {network}");
            }
            assert_eq!(connect(world, "danger-full-access", &[], path), 0);
        }
    });
}

#[test]
fn a_socket_that_the_command_made_itself_is_reached_in_the_workspace_and_in_tmp() {
    ordinary(|world| {
        let code = r#"
            for my $path (@ARGV) {
                unlink $path;
                socket my $l, AF_UNIX, SOCK_STREAM, 0; bind $l, pack_sockaddr_un($path) or die "bind $!"; listen $l, 1;
                socket my $s, AF_UNIX, SOCK_STREAM, 0;
                connect $s, pack_sockaddr_un($path) or die "connect $!";
                accept my $a, $l; syswrite $a, "hello\n"; print scalar <$s>;
            }
        "#;
        let done = world
            .call("workspace-write")
            .perl(code, &["own.sock", "/tmp/own.sock"]);
        assert_eq!(done.ok(), "hello\nhello");
    });
}

#[test]
fn a_socket_by_path_is_not_reached_by_a_link_by_a_relative_name_or_by_a_race() {
    ordinary(|world| {
        let path = world.outside().join("service.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::os::unix::fs::symlink(&path, world.workspace().join("link.sock")).unwrap();
        assert_eq!(
            connect(world, "workspace-write", &[], "link.sock"),
            libc::EACCES
        );
        assert_eq!(
            connect(world, "workspace-write", &[], "../outside/service.sock"),
            libc::EACCES
        );
        // The name changes between an own socket and a foreign one while it is being connected to.
        let code = r#"
            my ($foreign) = @ARGV;
            socket my $l, AF_UNIX, SOCK_STREAM, 0; bind $l, pack_sockaddr_un("own.sock") or die; listen $l, 100;
            my $pid = fork;
            if (!$pid) {
                for (1 .. 100_000) {
                    symlink "own.sock", "t1"; rename "t1", "turn.sock";
                    symlink $foreign, "t2"; rename "t2", "turn.sock";
                }
                exit;
            }
            my %seen;
            for (1 .. 300) {
                socket my $s, AF_UNIX, SOCK_STREAM, 0;
                $seen{connect($s, pack_sockaddr_un("turn.sock")) ? 0 : $! + 0}++;
                accept my $a, $l if fcntl($l, F_SETFL, O_NONBLOCK);
            }
            kill 9, $pid;
            print $seen{0} ? "own" : "none";
        "#;
        let done = world
            .call("workspace-write")
            .perl(code, &[path.to_str().unwrap()]);
        assert_eq!(done.ok(), "own");
        assert!(listener.accept().is_err());
    });
}

#[test]
fn sockets_that_take_commands_are_not_there() {
    ordinary(|world| {
        // Where an agent listens is told by a variable; the folder that it lies in is hidden.
        let agent = world.outside().join("agent");
        std::fs::create_dir(&agent).unwrap();
        let socket = agent.join("s.1");
        let _listener = UnixListener::bind(&socket).unwrap();
        let call = || world.call("workspace-write").env("SSH_AUTH_SOCK", &socket);
        call().sh("test -z \"$SSH_AUTH_SOCK\"").ok();
        let found = call()
            .perl(CONNECT, &[socket.to_str().unwrap()])
            .ok()
            .to_owned();
        assert_eq!(found, libc::EACCES.to_string());
        // /run and the host's /tmp are private.
        assert_eq!(world.write("ls -A /run | grep -v -e '^user$' -e '^systemd$' -e '^resolvconf$' -e '^NetworkManager$'").out(), "");
        world
            .write(
                "test -S /run/docker.sock -o -S /run/dbus/system_bus_socket -o -d /tmp/.X11-unix",
            )
            .failed();
    });
}

#[test]
fn abstract_sockets_of_the_host_are_not_reached_even_with_the_hosts_network() {
    anyone(|world| {
        let name = format!("cofferdam-promise-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let name = format!("@{name}");
        assert_eq!(
            connect(world, "workspace-write", &[], &name),
            libc::ECONNREFUSED
        );
        let with_host = connect(world, "workspace-write", &["--network", "host"], &name);
        assert_eq!(with_host, libc::EPERM);
        assert_eq!(connect(world, "danger-full-access", &[], &name), 0);
    });
}

#[test]
fn an_abstract_socket_of_the_command_itself_works() {
    ordinary(|world| {
        let code = r#"
            my $name = pack "Sa*", AF_UNIX, "\0own";
            socket my $l, AF_UNIX, SOCK_STREAM, 0; bind $l, $name or die "bind $!"; listen $l, 1;
            socket my $s, AF_UNIX, SOCK_STREAM, 0; connect $s, $name or die "connect $!";
            print "reached";
        "#;
        assert_eq!(
            world.call("workspace-write").perl(code, &[]).ok(),
            "reached"
        );
    });
}

#[test]
fn bytes_reach_a_host_service_whole_when_the_network_is_the_hosts() {
    ordinary(|world| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            listener
                .accept()
                .unwrap()
                .0
                .read_to_string(&mut text)
                .unwrap();
            text
        });
        let call = world.call("workspace-write").args(["--network", "host"]);
        call.sh(format!("seq 1 10000 > /dev/tcp/127.0.0.1/{port}"))
            .ok();
        let expected: String = (1..=10000).map(|n| format!("{n}\n")).collect();
        assert_eq!(reading.join().unwrap(), expected);
    });
}
