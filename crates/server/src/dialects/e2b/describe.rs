//! Sandboxes, files and times in E2B's words.

use std::time::{SystemTime, UNIX_EPOCH};

use aludel_engine::sandboxes::ClientSandbox;
use aludel_engine::sandboxes::files::PathInfo;
use aludel_wire::e2b::filesystem::{EntryInfo, FileType};
use aludel_wire::e2b::{self, State};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use jiff::Timestamp;

use crate::http::is_local_host;

/// The version of E2B's own server of files and commands whose features this server has.
pub(super) const ENVD_VERSION: &str = "0.6.4";
/// The machine that sandboxes are on.
const CLIENT_ID: &str = "aludel";

/// A time in RFC 3339, to the microsecond.
pub(super) fn time(time: SystemTime) -> String {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
}

/// The domain of the sandboxes' host names: the name by which the client reached this server.
pub(super) fn domain(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let host = host.strip_prefix("api.").unwrap_or(host);
    if is_local_host(host) {
        // An IP address has no subdomains.
        let port =
            host.rsplit_once(':').map(|(_, port)| port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        return port.map_or("localhost".to_owned(), |port| format!("localhost:{port}"));
    }
    host.to_owned()
}

/// A sandbox as it is made or connected to.
pub(super) fn sandbox(sandbox: &ClientSandbox, domain: String) -> e2b::Sandbox {
    e2b::Sandbox {
        template_id: sandbox.spec().template_label.clone(),
        sandbox_id: sandbox.id().to_owned(),
        client_id: CLIENT_ID.to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        envd_access_token: Some(sandbox.secret().to_owned()),
        traffic_access_token: sandbox.traffic_secret().map(str::to_owned),
        domain,
    }
}

/// A sandbox in a list.
pub(super) fn listed(sandbox: &ClientSandbox) -> e2b::ListedSandbox {
    let limits = sandbox.inner().limits();
    e2b::ListedSandbox {
        template_id: sandbox.spec().template_label.clone(),
        sandbox_id: sandbox.id().to_owned(),
        client_id: CLIENT_ID.to_owned(),
        started_at: time(sandbox.started()),
        end_at: time(sandbox.ends()),
        cpu_count: limits.cpus.ceil() as u32,
        memory_mb: limits.memory >> 20,
        disk_size_mb: limits.disk >> 20,
        envd_version: ENVD_VERSION.to_owned(),
        state: if sandbox.is_paused() { State::Paused } else { State::Running },
        metadata: sandbox.metadata(),
    }
}

/// A sandbox with all details.
pub(super) fn detail(sandbox: &ClientSandbox, domain: String) -> e2b::SandboxDetail {
    e2b::SandboxDetail {
        listed: listed(sandbox),
        envd_access_token: Some(sandbox.secret().to_owned()),
        domain,
        allow_internet_access: false,
        lifecycle: e2b::Lifecycle {
            auto_resume: sandbox.spec().resumes,
            on_timeout: if sandbox.spec().pauses.is_some() { e2b::OnTimeout::Pause } else { e2b::OnTimeout::Kill },
        },
    }
}

/// The resources that a sandbox uses now.
pub(super) async fn metric(sandbox: &ClientSandbox) -> e2b::Metric {
    let limits = sandbox.inner().limits().clone();
    let (usage, now) = (sandbox.usage().await, SystemTime::now());
    let lived = now.duration_since(sandbox.started()).unwrap_or_default().as_secs_f64().max(0.001);
    let files = std::sync::Arc::clone(sandbox.inner().workspace())
        .blocking(|workspace| workspace.files())
        .await
        .unwrap_or_default();
    e2b::Metric {
        timestamp: time(now),
        timestamp_unix: i64::try_from(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).unwrap_or(i64::MAX),
        cpu_count: limits.cpus.ceil() as u32,
        cpu_used_pct: (usage.cpu.as_secs_f64() / lived / limits.cpus * 100.0).min(100.0),
        mem_used: usage.memory,
        mem_total: limits.memory,
        mem_cache: 0,
        disk_used: files.iter().map(|file| file.size).sum(),
        disk_total: limits.disk,
    }
}

/// Type and permissions (`st_mode`) by their meaning.
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// A file.
pub(super) fn entry(entry: PathInfo) -> EntryInfo {
    let shown = if entry.target.is_some() { entry.target_mode } else { Some(entry.mode) };
    let r#type = match shown.map(|mode| mode & TYPE) {
        Some(DIRECTORY) => FileType::Directory,
        Some(REGULAR) => FileType::File,
        _ => FileType::Unspecified,
    };
    let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(entry.modified.max(0).cast_unsigned());
    EntryInfo {
        r#type,
        size: i64::try_from(entry.size).unwrap_or(i64::MAX),
        mode: shown.unwrap_or_default() & 0o7777,
        permissions: permissions(entry.mode),
        modified_time: time(modified),
        name: entry.name,
        path: entry.path,
        owner: entry.owner,
        group: entry.group,
        symlink_target: entry.target,
        metadata: entry.metadata,
    }
}

/// Type and permissions in Go's words, where a link is an `L`.
fn permissions(mode: u32) -> String {
    let kind = match mode & TYPE {
        DIRECTORY => "d",
        LINK => "L",
        REGULAR => "-",
        _ => "?",
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let bits = bits.map(|(place, letter)| if mode & (0o400 >> place) == 0 { '-' } else { letter });
    kind.chars().chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_is_always_ours() {
        let domain = |host: &'static str| {
            let headers = HeaderMap::from_iter([(HOST, axum::http::HeaderValue::from_static(host))]);
            domain(&headers)
        };
        assert_eq!(domain("127.0.0.1:8080"), "localhost:8080");
        assert_eq!(domain("[::1]:8080"), "localhost:8080");
        assert_eq!(domain("localhost"), "localhost");
        assert_eq!(domain("api.example.com"), "example.com");
        assert_eq!(domain("example.com:444"), "example.com:444");
    }

    #[test]
    fn permissions_are_in_gos_words() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o040_755), "drwxr-xr-x");
        assert_eq!(permissions(0o120_777), "Lrwxrwxrwx");
    }
}
