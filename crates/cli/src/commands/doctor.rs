//! `aludel doctor`: what this host can enforce, what is missing, and the command that mends it.

use aludel_agent::size;
use aludel_sandbox::probe::{Check, Status, probe};
use aludel_sandbox::template::{self, State};
use serde_json::json;

use crate::config::Config;
use crate::exit::Exit;
use crate::output::print_json;
use crate::paint;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 sandboxes work here (perhaps with less protection, which is shown), 4 they cannot start."
)]
pub(crate) struct DoctorArguments {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &DoctorArguments, config: &Config) -> anyhow::Result<Exit> {
    let mut checks = probe();
    checks.push(template_check(config));
    let broken = checks.iter().any(|check| check.status == Status::Missing);
    if arguments.json {
        let rows: Vec<_> = checks
            .iter()
            .map(|check| json!({ "name": check.name, "status": status_name(check.status), "detail": check.detail, "mend": check.mend }))
            .collect();
        print_json(&json!({ "works": !broken, "checks": rows }));
    } else {
        print_table(&checks, broken);
    }
    Ok(if broken { Exit::Ours } else { Exit::Success })
}

fn template_check(config: &Config) -> Check {
    let (status, detail, mend) = match template::state(&config.data) {
        State::Ready(template) => {
            let detail = format!(
                "Python {}, {} packages, {}",
                template.python_version(),
                template.packages().len(),
                size(template.bytes())
            );
            (Status::Ok, detail, None)
        }
        State::Missing => {
            let detail = "not built yet; the first program takes a minute longer".into();
            (Status::Degraded, detail, Some("aludel template build".into()))
        }
        State::Unbuildable(reason) => (Status::Missing, reason, Some("apt-get install python3 python3-venv".into())),
    };
    Check { name: "template", status, detail, mend }
}

fn print_table(checks: &[Check], broken: bool) {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let mark = match check.status {
            Status::Ok => paint::good("ok      "),
            Status::Degraded => paint::warning("degraded"),
            Status::Missing => paint::error("missing "),
        };
        println!("{mark}  {:width$}  {}", check.name, check.detail);
        if let Some(mend) = &check.mend {
            println!("{:10}{:width$}  {}", "", "", paint::faint(&format!("to mend: {mend}")));
        }
    }
    println!();
    let degraded = checks.iter().any(|check| check.status == Status::Degraded);
    println!(
        "{}",
        match (broken, degraded) {
            (true, _) => paint::error("Sandboxes cannot start here."),
            (false, true) => paint::warning("Sandboxes work here, with the reservations above."),
            (false, false) => paint::good("Sandboxes work here, with everything enforced."),
        }
    );
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    }
}
