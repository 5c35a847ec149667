//! Hostile programs with their controls, run against the sandbox of this host: `tests/escapes` in the repository.

use std::time::Duration;

use serde::Deserialize;

use crate::{
    Backend, Error, ExecutionEvent, KernelDeath, LimitHit, Limits, Outcome, Profile, Sandbox, SandboxId, SandboxSpec,
};

/// The suite, by file.
const SUITE: [(&str, &str); 14] = [
    ("host", include_str!("../escapes/host.toml")),
    ("information", include_str!("../escapes/information.toml")),
    ("files", include_str!("../escapes/files.toml")),
    ("containers", include_str!("../escapes/containers.toml")),
    ("incidents", include_str!("../escapes/incidents.toml")),
    ("kernel", include_str!("../escapes/kernel.toml")),
    ("syscalls", include_str!("../escapes/syscalls.toml")),
    ("network", include_str!("../escapes/network.toml")),
    ("neighbours", include_str!("../escapes/neighbours.toml")),
    ("channel", include_str!("../escapes/channel.toml")),
    ("exhaustion", include_str!("../escapes/exhaustion.toml")),
    ("endings", include_str!("../escapes/endings.toml")),
    ("shared", include_str!("../escapes/shared.toml")),
    ("services", include_str!("../escapes/services.toml")),
];

/// A hostile program.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    /// Its attempt, in a few words.
    pub name: String,
    /// The threat of SECURITY.md that it stands for.
    pub threat: String,
    /// Its architecture, if it is for one only.
    arch: Option<String>,
    /// A program that runs first, in a sandbox that stays alive beside the attack's. Its output is the variable `neighbour` of the other
    /// programs.
    neighbour: Option<String>,
    /// Must run to its end in the neighbour's sandbox after the attack.
    after: Option<String>,
    /// The attempt.
    pub program: String,
    /// A program that does the same within its rights, and must succeed.
    pub control: String,
    /// Ends of the attempt that count as defended: names of exceptions and limits, separated by bars.
    pub expect: String,
    /// The ends that count with [`Profile::Services`], if different.
    services: Option<String>,
}

/// Result of an attack and its control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttackResult {
    /// The attack ended as it has to, and its control works.
    Held,
    /// The attack ended in another way: what it did.
    Broken(String),
    /// The control failed, so the attack proves nothing: why.
    Unproven(String),
}

#[derive(Deserialize)]
struct File {
    attack: Vec<Attack>,
}

/// All attacks for this architecture, each with the name of its file.
pub fn suite() -> Result<Vec<(&'static str, Attack)>, Error> {
    let mut all = Vec::new();
    for (name, text) in SUITE {
        let file: File =
            toml::from_str(text).map_err(|error| Error::Template(format!("tests/escapes/{name}.toml: {error}")))?;
        let here = |attack: &Attack| attack.arch.as_deref().is_none_or(|arch| arch == std::env::consts::ARCH);
        all.extend(file.attack.into_iter().filter(here).map(|attack| (name, attack)));
    }
    Ok(all)
}

/// The limits under which the suite runs: small, so that each is reached quickly. On a machine that is `slow` times slower than usual, such
/// as an emulated one, the time limits are multiplied by that; all other limits stay.
pub fn limits(slow: u32) -> Limits {
    const MIB: u64 = 1 << 20;
    Limits {
        memory: 300 * MIB,
        processes: 32,
        // Only reached if the sandbox does not hold; long enough for a busy machine.
        timeout: Duration::from_secs(60) * slow,
        grace: Duration::from_millis(300) * slow,
        disk: 64 * MIB,
        files: 2000,
        file_size: 64 * MIB,
        tmp: 32 * MIB,
        output: MIB,
        open_files: 256,
        ..Limits::default()
    }
}

/// Time limit of programs that are expected to reach it: the suite waits for each of them.
const SOON: Duration = Duration::from_secs(1);

impl Attack {
    /// Runs the control and then the attack, each in a fresh sandbox; `slow` is as for [`limits`].
    pub async fn run(&self, backend: &dyn Backend, slow: u32, profile: Profile) -> Result<AttackResult, Error> {
        let limits = limits(slow);
        let create = async |limits| create(backend, limits, profile).await;
        let expect = match (profile, &self.services) {
            (Profile::Services, Some(expect)) => expect,
            (Profile::Data | Profile::Services, _) => &self.expect,
        };
        let mut neighbour = None;
        let mut prefix = match profile {
            Profile::Data => "services = False\n".to_owned(),
            Profile::Services => "services = True\n".to_owned(),
        };
        if let Some(code) = &self.neighbour {
            let sandbox = create(limits.clone()).await?;
            let (outcome, printed) = run(&*sandbox, &format!("{prefix}{code}")).await?;
            if outcome != Outcome::Completed {
                return Ok(AttackResult::Unproven(format!("its neighbour: {}", name_of(&outcome))));
            }
            // A JSON string is also a Python string.
            prefix.push_str(&format!("neighbour = {}\n", serde_json::Value::from(printed.trim_end())));
            neighbour = Some(sandbox);
        }
        let control = create(limits.clone()).await?;
        let (outcome, _) = run(&*control, &format!("{prefix}{}", self.control)).await?;
        control.close().await?;
        if outcome != Outcome::Completed {
            return Ok(AttackResult::Unproven(name_of(&outcome)));
        }
        let timeout = if expect == "time" { SOON * slow } else { limits.timeout };
        let attacker = create(Limits { timeout, ..limits }).await?;
        let (outcome, _) = run(&*attacker, &format!("{prefix}{}", self.program)).await?;
        attacker.close().await?;
        let outcome = name_of(&outcome);
        if !expect.split('|').any(|expected| expected == outcome.split(':').next().unwrap_or_default()) {
            return Ok(AttackResult::Broken(format!("{outcome}, instead of {expect}")));
        }
        if let (Some(neighbour), Some(code)) = (&neighbour, &self.after) {
            let (outcome, _) = run(&**neighbour, code).await?;
            if outcome != Outcome::Completed {
                return Ok(AttackResult::Broken(format!("its neighbour afterwards: {}", name_of(&outcome))));
            }
        }
        if let Some(neighbour) = neighbour {
            neighbour.close().await?;
        }
        Ok(AttackResult::Held)
    }
}

async fn create(backend: &dyn Backend, limits: Limits, profile: Profile) -> Result<std::sync::Arc<dyn Sandbox>, Error> {
    backend.create(SandboxId::unique(), SandboxSpec { profile, ..SandboxSpec::new(limits) }).await
}

/// Runs a program and returns its outcome and what it printed.
async fn run(sandbox: &dyn Sandbox, code: &str) -> Result<(Outcome, String), Error> {
    let mut execution = sandbox.execute(code).await?;
    let mut printed = String::new();
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => printed.push_str(&text),
            ExecutionEvent::Finished(finished) => return Ok((finished.outcome, printed)),
            _ => {}
        }
    }
    Ok((Outcome::KernelDied(KernelDeath::Unknown), printed))
}

/// An outcome in the terms of the suite, with details after a colon.
fn name_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed => "harmless".into(),
        Outcome::Failed(error) => format!("{}: {}", error.name, error.value),
        Outcome::Limit(LimitHit::Memory { .. }) => "memory".into(),
        Outcome::Limit(LimitHit::WallClock { .. }) => "time".into(),
        Outcome::Limit(LimitHit::CpuTime { .. }) => "cpu time".into(),
        Outcome::Limit(LimitHit::Disk { .. }) => "disk".into(),
        Outcome::Limit(LimitHit::Files { .. }) => "files".into(),
        Outcome::Interrupted => "interrupted".into(),
        Outcome::KernelDied(KernelDeath::Signalled(signal)) => format!("signal {signal}"),
        Outcome::KernelDied(KernelDeath::Exited(code)) => format!("exit {code}"),
        Outcome::KernelDied(KernelDeath::Unknown) => "gone".into(),
    }
}
