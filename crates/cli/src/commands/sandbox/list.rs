//! `aludel sandbox ls`.

use aludel_wire::e2b::ListedSandbox;
use jiff::Timestamp;

use crate::console::{self, Console, StandardStream};
use crate::exit::Exit;
use crate::remote::RemoteServer;
use crate::{json, terminal};

pub(super) async fn run(server: &RemoteServer, as_json: bool) -> anyhow::Result<Exit> {
    let all = server.list().await?;
    if as_json {
        json::print(&all)?;
        return Ok(Exit::Success);
    }
    if all.is_empty() {
        console::status("there are no sandboxes; `aludel sandbox create` makes one");
        return Ok(Exit::Success);
    }
    let mut console = Console::new();
    let width = all.iter().map(|one| one.sandbox_id.len()).max().unwrap_or(0);
    console.line(StandardStream::Stdout, &format!("{:width$}  {:>8}  {:>8}  NAME", "SANDBOX", "AGE", "ENDS IN"))?;
    let now = Timestamp::now();
    for one in &all {
        console.line(StandardStream::Stdout, &line(one, now, width))?;
    }
    Ok(Exit::Success)
}

fn line(one: &ListedSandbox, now: Timestamp, width: usize) -> String {
    let between = |text: &str, sign: i64| match text.parse::<Timestamp>() {
        Ok(time) => span(sign * (time.as_second() - now.as_second())),
        Err(_) => "?".to_owned(),
    };
    let (age, left) = (between(&one.started_at, -1), between(&one.end_at, 1));
    let name = match one.metadata.get("name") {
        Some(name) => terminal::name(name),
        None => one.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "),
    };
    let (id, name) = (terminal::name(&one.sandbox_id), terminal::excerpt(&name, 60));
    format!("{id:width$}  {age:>8}  {left:>8}  {name}").trim_end().to_owned()
}

/// A time in its two largest units.
fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        assert_eq!([-3, 59, 61, 3_600, 90_061].map(span), ["0s", "59s", "1m 1s", "1h 0m", "25h 1m"]);
    }
}
