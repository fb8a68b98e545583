//! What a program that wraps another must do: the rules of `rusage`, each tried on the built command.

#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{rusage, with_plain_signals};

fn run(arguments: &[&str]) -> Output {
    rusage().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &[u8]) -> Value {
    serde_json::from_slice(output).unwrap_or_else(|e| panic!("{e}: {}", text(output)))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Another process makes it: a file that this one has written cannot be run while a process that another test has just begun has it open.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (path, written) = (folder.join(name), folder.join("written"));
    fs::write(&written, text).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("cp").args([&written, &path]).status().unwrap().success());
    fs::remove_file(written).unwrap();
    path
}

#[test]
fn the_status_is_passed_on() {
    for status in [0, 1, 7, 125, 127, 255] {
        let ended = run(&["sh", "-c", &format!("exit {status}")]);
        assert_eq!(ended.status.code(), Some(status));
        assert!(text(&ended.stderr).contains("rusage: took "), "{}", text(&ended.stderr));
    }
}

#[test]
fn not_found_is_127_and_not_executable_126() {
    let folder = folder();
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let nothing = folder.path().join("nothing");
    for (program, status, why) in [
        (nothing.to_str().unwrap(), 127, "not found"),
        ("no-such-program-anywhere", 127, "not found"),
        (plain.to_str().unwrap(), 126, "cannot be executed"),
        (folder.path().to_str().unwrap(), 126, "cannot be executed"),
    ] {
        let ended = run(&[program]);
        assert_eq!(ended.status.code(), Some(status), "{program}");
        let said = text(&ended.stderr);
        assert!(said.contains(why) && said.contains(program), "{said}");
        assert!(
            !said.contains("rusage: took"),
            "nothing was run, so there is nothing to report: {said}"
        );
    }
}

/// A line of a shell in one word is no program; the message has the command that runs it.
#[test]
fn a_line_of_a_shell_is_recognised() {
    let ended = run(&["echo a | cat"]);
    assert_eq!(ended.status.code(), Some(127));
    assert!(text(&ended.stderr).contains("rusage sh -c 'echo a | cat'"), "{}", text(&ended.stderr));
}

#[test]
fn a_failure_is_named_and_so_is_the_end_of_a_series() {
    let said = |words: &[&str]| text(&run(words).stderr);
    assert!(!said(&["true"]).contains("failed"));
    assert!(said(&["sh", "-c", "exit 3"]).contains("rusage: failed: exit status 3\n"));
    assert!(said(&["sh", "-c", "kill -KILL $$"]).contains("rusage: failed: killed by SIGKILL\n"));
    let series = said(&["-n", "4", "-w", "0", "sh", "-c", "exit 3"]);
    assert!(
        series.contains("stopped after round 1 of 4") && series.contains("--ignore-failure"),
        "{series}"
    );
    let all = said(&["-n", "4", "-w", "0", "--ignore-failure", "sh", "-c", "exit 3"]);
    assert!(all.contains("failed in 4 of 4 runs") && !all.contains("stopped"), "{all}");
}

#[test]
fn what_prepares_runs_is_run_before_each_and_not_counted() {
    let folder = folder();
    let file = folder.path().join("lines");
    let prepare = format!("sh -c 'sleep 0.2; echo x >> {}'", file.display());
    let ended = run(&["-n", "2", "-w", "1", "--prepare", &prepare, "--json", "true"]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(fs::read_to_string(&file).unwrap(), "x\nx\nx\n");
    let ended =
        run(&["--prepare", "sh -c 'exit 5'", "touch", file.with_extension("no").to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(125));
    assert!(
        text(&ended.stderr).contains("--prepare") && text(&ended.stderr).contains("exit status 5")
    );
    assert!(!file.with_extension("no").exists());
}

/// Others' folders in `PATH`, as an ordinary user has them that was root.
#[test]
fn a_folder_that_may_not_be_looked_into_hides_nothing() {
    let folder = folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    script(&closed, "no-such-program", "exit 0\n");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let path = format!("{}:/bin:/usr/bin", closed.display());
    let mut command = rusage();
    command.args(["no-such-program"]).env("PATH", path);
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        // To root nothing is closed.
        command.uid(65534);
    }
    let ended = command.output();
    // So that it can be removed.
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = match ended {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: the command is in a folder that is closed to others");
            return;
        }
        ended => ended.unwrap(),
    };
    let said = text(&ended.stderr);
    assert_eq!((ended.status.code(), &*said), (Some(127), "rusage: no-such-program: not found\n"));
}

#[test]
fn an_interpreter_that_is_missing_is_named() {
    let folder = folder();
    script(folder.path(), "named", "#! /no/such/interpreter -x\necho hi\n");
    script(folder.path(), "windows", "#!/bin/sh\r\necho hi\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for (program, interpreter) in [
        ("named", "'/no/such/interpreter'"),
        ("./named", "'/no/such/interpreter'"),
        ("windows", "'/bin/sh\\r'"),
    ] {
        let mut command = rusage();
        command.arg(program).env("PATH", &path).current_dir(folder.path());
        let ended = command.output().unwrap();
        let said = text(&ended.stderr);
        // As shells have it.
        assert_eq!(ended.status.code(), Some(127), "{said}");
        let expected = format!("rusage: {program}: its interpreter {interpreter} is not found\n");
        assert_eq!(said, expected);
    }
}

#[test]
fn bad_usage_is_125() {
    for arguments in [&[][..], &["-n", "x", "true"], &["--no-such-option"], &["--vs", "'", "true"]]
    {
        let ended = run(arguments);
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}");
        assert!(text(&ended.stderr).contains("--help"));
    }
}

#[test]
fn a_file_without_a_first_line_for_the_kernel_is_a_shell_script() {
    let folder = folder();
    script(folder.path(), "bare", "echo \"$0 $1\"; exit 5\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let ended = rusage().args(["bare", "x"]).env("PATH", path).output().unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), format!("{} x\n", folder.path().join("bare").display()));
}

#[test]
fn a_killing_signal_kills_the_wrapper_too_after_the_report() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT, libc::SIGPIPE] {
        let ended = run(&["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ended.status.signal(), Some(signal));
        assert!(!ended.status.core_dumped());
        assert!(text(&ended.stderr).contains("wall time"));
    }
    let ended = run(&["--json", "sh", "-c", "kill -9 $$"]);
    let run = &json(&ended.stderr)["runs"][0];
    assert_eq!((&run["signal"], &run["exit_code"]), (&Value::from(9), &Value::Null));
}

#[test]
fn the_standard_streams_are_the_commands_own() {
    let mut child = rusage()
        .args(["cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let sent = sent.clone();
        move || stdin.write_all(&sent).unwrap()
    });
    let ended = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(ended.stdout == sent);
    assert!(text(&ended.stderr).starts_with("rusage: took"));
}

/// What the command finds is what it would find without the wrapper.
#[test]
fn signals_are_as_they_were_in_the_command() {
    // Masks of blocked, ignored and caught signals; then the numbers of open files. No shell: those
    // change them.
    let masks = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    let files = ["ls", "/proc/self/fd"];
    if !Path::new("/proc/self/status").exists() {
        eprintln!("skipped: no /proc");
        return;
    }
    let with = |ignored: &'static [i32], blocked: &'static [i32], command: &mut Command| {
        // SAFETY: only system calls between fork and exec.
        let prepared = unsafe {
            command.pre_exec(move || {
                for &signal in ignored {
                    libc::signal(signal, libc::SIG_IGN);
                }
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                for &signal in blocked {
                    libc::sigaddset(&mut set, signal);
                }
                libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                Ok(())
            })
        };
        let ended = prepared.output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        text(&ended.stdout)
    };
    for (ignored, blocked) in [
        (&[][..], &[][..]),
        (&[libc::SIGINT, libc::SIGQUIT][..], &[libc::SIGUSR1][..]),
        (&[libc::SIGHUP, libc::SIGPIPE], &[libc::SIGTERM, libc::SIGINT]),
        // Nobody's end can be waited for, unless the wrapper undoes it for itself.
        (&[libc::SIGCHLD], &[]),
    ] {
        for ask in [&masks[..], &files[..]] {
            let mut command = with_plain_signals(Command::new(ask[0]));
            let alone = with(ignored, blocked, command.args(&ask[1..]));
            let wrapped = with(ignored, blocked, rusage().args(ask));
            assert_eq!(alone, wrapped, "ignored {ignored:?}, blocked {blocked:?}");
        }
    }
}

/// Starts a command that says when it is ready, and waits for that.
fn started(arguments: &[&str], ready: &Path) -> std::process::Child {
    let child = rusage()
        .args(arguments)
        // Like a job of a shell: a group of its own, which can be sent a signal as a terminal does.
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while !ready.exists() {
        assert!(Instant::now() < patience, "the command did not start");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Its end, which must come. Nothing of its group is left: that would keep the streams open.
fn ended(mut child: std::process::Child) -> Output {
    let patience = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
    let has_ended = child.try_wait().unwrap().is_some();
    // SAFETY: takes numbers.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    assert!(has_ended, "it does not end");
    child.wait_with_output().unwrap()
}

#[test]
fn what_is_sent_to_the_wrapper_alone_reaches_the_command() {
    let mut signals = vec![libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
    signals.extend([libc::SIGQUIT, libc::SIGABRT, libc::SIGPIPE, libc::SIGALRM, libc::SIGURG]);
    signals.extend([libc::SIGXCPU, libc::SIGXFSZ, libc::SIGVTALRM, libc::SIGPROF, libc::SIGWINCH]);
    signals.extend([libc::SIGIO, libc::SIGCONT]);
    #[cfg(target_os = "linux")]
    signals.extend([libc::SIGPWR, libc::SIGRTMIN() + 3, libc::SIGRTMAX()]);
    for signal in signals {
        let folder = folder();
        let ready = folder.path().join("ready");
        let line = format!(
            "trap 'exit 42' {signal}; : > {}; while :; do sleep 0.01; done",
            ready.display()
        );
        let child = started(&["sh", "-c", &line], &ready);
        // SAFETY: takes numbers.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let ended = ended(child);
        assert_eq!(ended.status.code(), Some(42), "signal {signal}: {}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains("wall time"));
    }
}

/// A timer that was set for what is executed now: with the wrapper before it, it is for the program.
#[test]
fn an_alarm_that_was_set_before_reaches_the_command() {
    // It may come before the program is ready on a busy machine, and is then no proof of anything.
    let reached = [1, 4, 16].into_iter().any(|seconds| {
        let mut command = rusage();
        command.args(["sh", "-c", "trap 'exit 42' ALRM; while :; do sleep 0.01; done"]);
        // SAFETY: one system call between fork and exec.
        let command = unsafe {
            command.pre_exec(move || {
                libc::alarm(seconds);
                Ok(())
            })
        };
        command.output().unwrap().status.code() == Some(42)
    });
    assert!(reached);
}

/// A letter for what a process does: `T` if it is stopped.
#[cfg(target_os = "linux")]
fn state(pid: libc::pid_t) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next().map(str::to_owned)
}

#[test]
#[cfg(target_os = "linux")]
fn the_wrapper_and_the_command_are_stopped_and_continued_together() {
    let folder = folder();
    let (ready, new) = (folder.path().join("ready"), folder.path().join("new"));
    let line = format!(
        "trap 'exit 42' TERM; echo $$ > {0}; mv {0} {1}; while :; do sleep 0.01; done",
        new.display(),
        ready.display()
    );
    let child = started(&["sh", "-c", &line], &ready);
    let wrapper = child.id() as libc::pid_t;
    let command: libc::pid_t = fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
    let both = |stopped: bool| {
        let patience = Instant::now() + Duration::from_secs(20);
        while [wrapper, command].iter().any(|&pid| (state(pid).as_deref() == Some("T")) != stopped)
        {
            assert!(Instant::now() < patience, "stopped is {stopped} for one of them only");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for _ in 0..2 {
        // SAFETY: takes numbers.
        unsafe { libc::kill(wrapper, libc::SIGTSTP) };
        both(true);
        // SAFETY: takes numbers.
        unsafe { libc::kill(wrapper, libc::SIGCONT) };
        both(false);
    }
    // SAFETY: takes numbers.
    unsafe { libc::kill(wrapper, libc::SIGTERM) };
    assert_eq!(ended(child).status.code(), Some(42));
}

#[test]
fn ctrl_c_ends_the_command_and_the_report_is_still_made() {
    let folder = folder();
    let ready = folder.path().join("ready");
    let line = format!(": > {}; exec sleep 60", ready.display());
    let child = started(&["-n", "3", "sh", "-c", &line], &ready);
    std::thread::sleep(Duration::from_millis(50));
    // To the whole group, as from a terminal.
    // SAFETY: takes numbers.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGINT) };
    let ended = ended(child);
    assert_eq!(ended.status.signal(), Some(libc::SIGINT), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("rusage: took"), "{}", text(&ended.stderr));
}

/// A background shell job ignores Ctrl-C, and so must what it runs.
#[test]
fn what_was_ignored_does_not_end_the_wrapper() {
    let mut command = rusage();
    command.args(["sh", "-c", "kill -INT $PPID; sleep 0.1; exit 9"]);
    // SAFETY: one system call between fork and exec.
    let command = unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            Ok(())
        })
    };
    assert_eq!(command.output().unwrap().status.code(), Some(9));
}

#[test]
fn programs_that_fork_are_accounted_for() {
    // A child that it waits for, which uses a tenth of a second of processor time.
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let ended = run(&["--json", "sh", "-c", &format!("sh -c '{busy}'; true")]);
    let parent = json(&ended.stderr);
    let cpu = parent["summary"]["cpu_us"]["median"].as_f64().unwrap();
    assert!(cpu > 10_000.0, "{cpu}");
    // One that it leaves behind, with the report's own stream open: the wrapper does not wait.
    let began = Instant::now();
    let ended = rusage()
        .args(["-o", "/dev/null", "sh", "-c", "sleep 30 >/dev/null 2>&1 & exit 4"])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(4));
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn the_report_can_go_to_a_file() {
    let folder = folder();
    let path = folder.path().join("report");
    let name = path.to_str().unwrap();
    fs::write(&path, "old\n").unwrap();
    let ended = run(&["-o", name, "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((text(&ended.stdout), text(&ended.stderr)), ("out\n".into(), "err\n".into()));
    let first = fs::read_to_string(&path).unwrap();
    assert!(first.starts_with("rusage: took"));
    run(&["-a", "-o", name, "true"]);
    let both = fs::read_to_string(&path).unwrap();
    assert!(both.starts_with(&first) && both.matches("wall time").count() == 2);
    // Before anything is run: the command must not have happened in vain.
    let marker = folder.path().join("ran");
    let ended = run(&["-o", "/no/such/folder/x", "touch", marker.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(125));
    assert!(!marker.exists() && text(&ended.stderr).contains("/no/such/folder/x"));
}

/// Cells of a row; none of these tests' commands has a comma in it.
fn cells(row: &str) -> Vec<&str> {
    row.split(',').collect()
}

#[test]
fn a_csv_has_a_row_for_each_run_and_the_report_stays() {
    let folder = folder();
    let path = folder.path().join("runs.csv");
    let export = format!("--export=csv={}", path.display());
    let ended = run(&["-n", "3", &export, "--vs", "sh -c 'echo; exit 0'", "sh", "-c", "echo out"]);
    assert_eq!((ended.status.code(), text(&ended.stdout).matches("out").count()), (Some(0), 4));
    let said = text(&ended.stderr);
    assert!(
        said.contains("rusage: 3 runs of 'sh -c echo out'") && !said.contains("wall_s"),
        "{said}"
    );
    let table = fs::read_to_string(&path).unwrap();
    let rows: Vec<_> = table.lines().map(cells).collect();
    assert_eq!(rows.len(), 1 + 6, "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    let column = |name: &str| rows[0].iter().position(|cell| *cell == name).unwrap();
    for (i, row) in rows[1..].iter().enumerate() {
        let command = ["sh -c 'echo out'", "sh -c 'echo; exit 0'"][i / 3];
        assert_eq!((row[0], row[column("run")]), (command, &*(i % 3 + 1).to_string()), "{table}");
        assert_eq!((row[column("exit_code")], row[column("signal")]), ("0", ""));
        let wall: f64 = row[column("wall_s")].parse().unwrap();
        assert!(wall > 0.0 && row[column("wall_s")].split_once('.').unwrap().1.len() == 6);
        assert!(row[column("minor_faults")].parse::<u64>().unwrap() > 0);
        assert_eq!(row[column("cycles")], "", "nobody asked for it");
    }
    // Added to, it has still one line of names.
    let killed = run(&["-a", &export, "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.signal(), Some(9));
    let both = fs::read_to_string(&path).unwrap();
    assert!(both.starts_with(&table) && both.matches("wall_s").count() == 1, "{both}");
    let last = cells(both.lines().last().unwrap());
    assert_eq!((last[column("exit_code")], last[column("signal")]), ("", "9"), "{both}");
    // Another table is not spoiled, and nothing is run in vain.
    let (other, marker) = (folder.path().join("other.csv"), folder.path().join("ran"));
    fs::write(&other, "a,b\n1,2\n").unwrap();
    let export = format!("csv={}", other.display());
    let refused = run(&["-a", "--export", &export, "touch", marker.to_str().unwrap()]);
    let said = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(125) && said.contains("other.csv: its first line"),
        "{said}"
    );
    assert!(!marker.exists() && fs::read_to_string(&other).unwrap() == "a,b\n1,2\n");
}

#[test]
fn a_table_in_markdown_has_a_row_for_each_command() {
    let ended = run(&["--export", "markdown", "-n", "2", "--vs", "echo 'a|b'", "echo", "out"]);
    assert_eq!((ended.status.code(), text(&ended.stdout).matches("out").count()), (Some(0), 3));
    let table = text(&ended.stderr);
    let rows: Vec<Vec<_>> = table.lines().map(|line| line.split(" | ").collect()).collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    assert!(rows[1].iter().all(|cell| cell.contains("--")), "{table}");
    let unit = ["Wall [s]", "Wall [ms]", "Wall [µs]"].contains(&rows[0][2]);
    assert!(unit && rows[0][..2] == ["| Command", "Runs"], "{table}");
    assert_eq!((rows[2][0], rows[2][1], rows[2][4]), ("| `echo out`", "2", "1.000"), "{table}");
    assert_eq!((rows[3][0], rows[3][1]), ("| `echo 'a\\|b'`", "2"), "{table}");
    // One run of one command has no spread and no ratio; one that fails is told.
    let folder = folder();
    let path = folder.path().join("table.md");
    let name = path.to_str().unwrap();
    let ended = run(&["--export", "md", "-o", name, "sh", "-c", "exit 3"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), String::new()));
    let table = fs::read_to_string(&path).unwrap();
    assert!(!table.contains("Relative") && !table.contains("Runs"), "{table}");
    assert!(table.contains("Failed |") && table.trim_end().ends_with("| 1 |"), "{table}");
    // Several reports at once, each in its form; a second table stands apart from the first.
    let json = folder.path().join("line.json");
    let export = format!("json={}", json.display());
    let ended = run(&["-a", "--export", "md", "--export", &export, "-o", name, "true"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
    let both = fs::read_to_string(&path).unwrap();
    assert!(both.starts_with(&format!("{table}\n| Command |")), "{both}");
    assert_eq!(self::json(&fs::read(&json).unwrap())["runs"][0]["exit_code"], 0);
}

#[test]
fn without_a_report_the_file_is_as_it_was() {
    let folder = folder();
    let (path, other) = (folder.path().join("report"), folder.path().join("other"));
    let name = path.to_str().unwrap();
    for more in [&[][..], &["-a"], &["--export", "csv"]] {
        for command in [&["no-such-program-anywhere"][..], &["--cold", "/no/such/file", "true"]] {
            let arguments = [more, &["-o", name], command].concat();
            assert_ne!(run(&arguments).status.code(), Some(0));
            assert!(!path.exists(), "{arguments:?}");
            fs::write(&path, "old\n").unwrap();
            run(&arguments);
            assert_eq!(fs::read_to_string(&path).unwrap(), "old\n", "{arguments:?}");
            fs::remove_file(&path).unwrap();
        }
    }
    // While the command runs, too. With a report, it is the same file, under all its names.
    fs::write(&path, "old\n".repeat(1000)).unwrap();
    fs::hard_link(&path, &other).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let ended = run(&["-o", link.to_str().unwrap(), "cat", name]);
    assert_eq!(text(&ended.stdout), "old\n".repeat(1000));
    let told = fs::read_to_string(&other).unwrap();
    assert!(told.starts_with("rusage: took") && !told.contains("old"), "{told}");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_report_into_the_commands_own_stream_does_not_take_its_place() {
    let folder = folder();
    for name in ["/dev/stderr", "/dev/stdout", "log"] {
        let path = folder.path().join("log");
        let log = fs::File::create(&path).unwrap();
        let status = rusage()
            .current_dir(folder.path())
            .args(["-o", name, "sh", "-c", "echo out; echo error >&2"])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .unwrap();
        let told = fs::read_to_string(&path).unwrap();
        assert!(status.success() && told.starts_with("out\nerror\nrusage: took"), "{name}: {told}");
    }
}

/// A full disk, a limit on sizes, a reader that has gone: the status is the command's in any case.
#[test]
fn a_report_that_cannot_be_written_changes_no_status() {
    let folder = folder();
    let path = folder.path().join("report");
    let name = path.to_str().unwrap();
    for status in [0, 6] {
        let command = format!("exit {status}");
        if Path::new("/dev/full").exists() {
            let ended = run(&["-o", "/dev/full", "sh", "-c", &command]);
            assert_eq!(ended.status.code(), Some(status));
            assert!(text(&ended.stderr).contains("/dev/full: cannot write the report"));
        }
        // What was started with this may write nothing into files.
        let line = format!("ulimit -f 0; exec \"$0\" -o '{name}' sh -c '{command}'");
        let mut limited = with_plain_signals(Command::new("sh"));
        let ended = limited.args(["-c", &line, env!("CARGO_BIN_EXE_rusage")]).output().unwrap();
        assert_eq!(ended.status.code(), Some(status), "{}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains("cannot write the report") && !path.exists());
    }
}

/// The program's stderr, which nobody reads.
fn nobody_reads(arguments: &[&str]) -> std::process::ExitStatus {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    rusage().args(arguments).stderr(writer).status().unwrap()
}

#[test]
fn a_report_that_nobody_reads_changes_no_status() {
    assert_eq!(nobody_reads(&["sh", "-c", "exit 6"]).code(), Some(6));
    assert_eq!(nobody_reads(&["--json", "true"]).code(), Some(0));
    assert_eq!(nobody_reads(&["-n", "2", "sh", "-c", "exit 6"]).code(), Some(6));
    assert_eq!(nobody_reads(&["sh", "-c", "kill -TERM $$"]).signal(), Some(libc::SIGTERM));
    // The program's own such end is still its own.
    assert_eq!(nobody_reads(&["sh", "-c", "kill -PIPE $$"]).signal(), Some(libc::SIGPIPE));
    assert_eq!(nobody_reads(&["no-such-program-anywhere"]).code(), Some(127));
    assert_eq!(nobody_reads(&["--no-such-option"]).code(), Some(125));
    assert_eq!(nobody_reads(&["-o", "/no/such/folder/x", "true"]).code(), Some(125));
}

#[test]
fn nobody_at_stderr_is_no_failure() {
    let folder = folder();
    let path = folder.path().join("report");
    let name = path.to_str().unwrap();
    for arguments in [&[][..], &["-o", name], &["-o", "/dev/full"]] {
        let mut command = rusage();
        command.args(arguments).args(["sh", "-c", "exit 6"]).stderr(Stdio::null());
        // SAFETY: one system call between fork and exec.
        let command = unsafe {
            command.pre_exec(|| {
                libc::close(2);
                Ok(())
            })
        };
        assert_eq!(command.status().unwrap().code(), Some(6));
    }
    assert!(fs::read_to_string(&path).unwrap().starts_with("rusage: took"));
}

#[test]
fn help_is_data() {
    let ended = run(&["--help"]);
    assert!(ended.status.success() && text(&ended.stdout).contains("Usage: rusage"));
    assert!(run(&["--version"]).stdout.starts_with(b"rusage "));
}

/// Not even of the file that is there: the old report is worth more than a part of the new one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_old_report() {
    let folder = folder();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: only root can mount a small disk");
    }
    let report = folder.path().join("report");
    fs::write(&report, "the old report\n").unwrap();
    let rest = vec![7; 64 << 10];
    assert!(fs::File::create(folder.path().join("rest")).unwrap().write_all(&rest).is_err());
    // JSON names the command.
    let long = "x".repeat(20_000);
    let ended = run(&["--json", "-o", report.to_str().unwrap(), "sh", "-c", "exit 6", &long]);
    let left = fs::read_to_string(&report).unwrap();
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
    assert_eq!(ended.status.code(), Some(6));
    assert!(text(&ended.stderr).contains("cannot write the report"), "{}", text(&ended.stderr));
    assert_eq!(left, "the old report\n");
}

#[test]
fn two_reports_do_not_go_to_one_file_by_whatever_names() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let marker = at("ran");
    let refused = |one: &str, two: &str| {
        let ended = run(&["-o", one, "--export", &format!("csv={two}"), "touch", &marker]);
        assert_eq!(ended.status.code(), Some(125));
        let said = text(&ended.stderr);
        assert!(said.contains("two reports cannot go to one file"), "{said}");
        assert!(!Path::new(&marker).exists());
    };
    refused(&at("new"), &at("./new"));
    assert!(!Path::new(&at("new")).exists(), "nothing is left of a file that was made for it");
    fs::write(at("old"), "old").unwrap();
    fs::hard_link(at("old"), at("hard")).unwrap();
    std::os::unix::fs::symlink("old", at("link")).unwrap();
    refused(&at("old"), &at("hard"));
    refused(&at("link"), &at("old"));
    assert_eq!(fs::read(at("old")).unwrap(), b"old");
    // What is no regular file takes as many as there are.
    let ended = run(&["-o", "/dev/null", "--export", "csv=/dev/../dev/null", "true"]);
    assert!(ended.status.success());
}
