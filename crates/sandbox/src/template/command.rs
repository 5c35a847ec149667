//! Commands of a build: their output line by line, and its end if they fail.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::{BuildCancellation, BuildLock, cancelled};
use crate::Error;

/// Lines of output that an error shows.
const SHOWN_LINES: usize = 15;

/// Words at the end of a command's output, and advice for each.
const HINTS: &[(&[&str], &str)] = &[
    (&["No space left"], "The disk is full; a template needs about 2 GB while it is built."),
    (
        &["HASHES", "do not match the hashes"],
        "The index gave another file than the one that was locked. It is not used; is there a mirror in between?",
    ),
    (
        &[
            "onnection",
            "No matching distribution",
            "Network",
            "Temporary failure",
            "timed out",
            "SSLError",
            "ProxyError",
        ],
        "Is the package index reachable? pip's own configuration is used (pip config list).",
    ),
];

/// Runs a command to its end, or to that of the build. `lock` becomes its stdin, which is empty: so the builders' lock is held until the
/// last process that writes into the template has ended, even if this process is killed. An error of `line` ends the command.
pub(super) fn run(
    command: &mut Command,
    what: &str,
    lock: &BuildLock,
    line: &mut dyn FnMut(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |words: String| Error::Template(format!("could not {what}: {words}"));
    let broken = |error: std::io::Error| failed(error.to_string());
    // One pipe for both streams keeps their order.
    let (reader, writer) = std::io::pipe().map_err(broken)?;
    command.stdin(lock.file.try_clone().map_err(broken)?);
    command.stdout(writer.try_clone().map_err(broken)?).stderr(writer);
    let watch = lock.cancellation.as_ref();
    if watch.is_some() {
        // A process group of its own can be killed with its descendants. Others get Ctrl-C together with this process.
        command.process_group(0);
    }
    let was_asked = || watch.is_some_and(BuildCancellation::was_asked);
    if was_asked() {
        return Err(cancelled());
    }
    let mut child = command.spawn().map_err(broken)?;
    watch.inspect(|watch| watch.watch(&child));
    // The command keeps its ends of the pipe until they are replaced.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut last = VecDeque::new();
    for text in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&text).into_owned();
        if let Err(error) = line(&text) {
            watch.inspect(|watch| watch.unwatch());
            child.kill().and_then(|()| child.wait()).map_err(broken)?;
            return Err(error);
        }
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
    watch.inspect(|watch| watch.unwatch());
    let status = child.wait().map_err(broken)?;
    if was_asked() {
        return Err(cancelled());
    }
    if status.success() {
        return Ok(());
    }
    let words = Vec::from(last).join("\n");
    let known = HINTS.iter().find(|(signs, _)| signs.iter().any(|sign| words.contains(sign)));
    let hint = known.map(|(_, hint)| format!("\n{hint}")).unwrap_or_default();
    Err(failed(format!("{status}\n{words}{hint}")))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use super::*;

    fn words_of(script: &str) -> String {
        let lock = BuildLock { file: tempfile::tempfile().unwrap(), cancellation: None };
        run(Command::new("sh").args(["-c", script]), "do it", &lock, &mut |_| Ok(())).unwrap_err().to_string()
    }

    #[test]
    fn a_failing_command_shows_its_last_words_and_what_to_do() {
        let words = words_of("echo one; echo 'No space left on device' >&2; exit 3");
        assert_eq!(
            words,
            "could not do it: exit status: 3\none\nNo space left on device\n\
             The disk is full; a template needs about 2 GB while it is built."
        );
        let words = words_of("seq 99; echo 'ERROR: No matching distribution found for numpy==2.2.6'; exit 1");
        assert!(words.contains("\n86\n") && !words.contains("\n85\n"), "{words}");
        assert!(words.ends_with("pip's own configuration is used (pip config list)."), "{words}");
    }

    #[test]
    fn the_lock_is_held_until_the_last_process_of_a_command_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".lock");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.lock().unwrap();
        let lock = BuildLock { file, cancellation: None };
        // A process that outlives its parent, like pip when its builder is killed. A shell's background processes have no stdin unless it
        // is redirected.
        let script = "exec 3<&0; sleep 60 <&3 3<&- >/dev/null 2>&1 & echo $!";
        let mut survivor = String::new();
        let mut line = |line: &str| {
            survivor = line.to_owned();
            Ok(())
        };
        run(Command::new("sh").args(["-c", script]), "do it", &lock, &mut line).unwrap();
        drop(lock);
        let other = File::open(&path).unwrap();
        assert!(other.try_lock().is_err());
        assert!(Command::new("kill").arg(survivor).status().unwrap().success());
        other.lock().unwrap();
    }

    #[test]
    fn a_build_that_is_cancelled_ends_its_command_with_all_descendants_and_starts_no_other() {
        let cancellation = BuildCancellation::default();
        let lock = BuildLock { file: tempfile::tempfile().unwrap(), cancellation: Some(cancellation.clone()) };
        let mut line = |line: &str| {
            assert_eq!(line, "on");
            let cancellation = cancellation.clone();
            thread::spawn(move || cancellation.cancel());
            Ok(())
        };
        // All processes hold the pipe, so the run does not end before they do.
        let script = "(sleep 60; echo a descendant is left) & echo on; wait";
        let error = run(Command::new("sh").args(["-c", script]), "do it", &lock, &mut line).unwrap_err();
        assert_eq!(error.to_string(), "the build of the template was ended");
        let error = run(&mut Command::new("/not/there"), "do it", &lock, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "the build of the template was ended");
    }
}
