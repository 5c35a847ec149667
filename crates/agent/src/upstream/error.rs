//! Failures of model calls, with messages that say what to do.

use std::time::Duration;

/// A failure of a call of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// 401 or 403.
    #[error("{endpoint} refused the key ({status}): {detail}. Check {key}")]
    Unauthorized {
        /// The server that answered.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// Origin of the key that was sent, never its value.
        key: String,
        /// The server's words.
        detail: String,
    },
    /// 404: no such model, or no such path.
    #[error(
        "{endpoint} answered 404: {detail}. Check the model's name (`{model}`) and that the url is the one ending in /v1"
    )]
    NotFound {
        /// The server that answered.
        endpoint: String,
        /// The model that was asked for.
        model: String,
        /// The server's words.
        detail: String,
    },
    /// 429, after the retries.
    #[error("{endpoint} is over its rate limit or quota (429): {detail}. {}", wait_advice(*retry_after))]
    RateLimited {
        /// The server that answered.
        endpoint: String,
        /// Wait that the server asks for.
        retry_after: Option<Duration>,
        /// The server's words.
        detail: String,
    },
    /// The configured number of concurrent requests to this model is reached.
    #[error(
        "{endpoint} is being asked {requests} times already, the most that `requests` of the model allows. Try again, or raise it"
    )]
    Busy {
        /// The server that was to be asked.
        endpoint: String,
        /// The limit.
        requests: usize,
    },
    /// Any other status from 300 to 499: the request is at fault.
    #[error("{endpoint} rejected the request ({status}): {detail}")]
    Rejected {
        /// The server that answered.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// The server's words.
        detail: String,
        /// True if the conversation is longer than the model reads.
        exceeds_context: bool,
    },
    /// 5xx, after the retries.
    #[error("{endpoint} failed ({status}): {detail}. This is the upstream's own fault; try again later")]
    Server {
        /// The server that answered.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// Wait that the server asks for.
        retry_after: Option<Duration>,
        /// The server's words.
        detail: String,
    },
    /// No connection could be made.
    #[error("cannot reach {endpoint}: {cause} ({detail}). {}", cause.advice())]
    Unreachable {
        /// The server that was called.
        endpoint: String,
        /// At which step it failed.
        cause: Unreachable,
        /// The system's words.
        detail: String,
    },
    /// The connection ended in the middle of an answer.
    #[error(
        "{endpoint} ended the connection in the middle of its answer ({detail}). Try again; if it repeats, look at the upstream's log or at a proxy's timeout in between"
    )]
    Dropped {
        /// The server that was answering.
        endpoint: String,
        /// The end of the stream, as it was seen.
        detail: String,
    },
    /// The answer is not of the protocol.
    #[error(
        "{endpoint} does not answer like {api}: {detail}. It sent: {excerpt}. Check that the url is the one ending in /v1, and the model's `api`"
    )]
    NotUnderstood {
        /// The server that answered.
        endpoint: String,
        /// The API that was expected.
        api: &'static str,
        /// The mistake.
        detail: String,
        /// The beginning of it, on one line.
        excerpt: String,
    },
    /// The upstream reported an error in its answer.
    #[error("{endpoint} reported an error while answering: {detail}")]
    Reported {
        /// The server that answered.
        endpoint: String,
        /// The server's words.
        detail: String,
    },
    /// Nothing came for too long.
    #[error("{endpoint} sent nothing for {} s. The model may be overloaded or too slow; raise the idle timeout if that is normal for it", after.as_secs_f64())]
    Idle {
        /// The server that was called.
        endpoint: String,
        /// Time that was waited.
        after: Duration,
    },
    /// The answer exceeds a bound.
    #[error("{endpoint} sent too much: {what}, more than {limit}. The rest was not read")]
    TooLarge {
        /// The server that answered.
        endpoint: String,
        /// The part that is too large.
        what: &'static str,
        /// The bound, bytes or a count.
        limit: u64,
    },
}

impl UpstreamError {
    /// Returns true if another model may succeed: this one is busy, broken or unreachable, and the request is not at fault.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::Busy { .. }
                | Self::Server { .. }
                | Self::Unreachable { .. }
                | Self::Dropped { .. }
                | Self::Idle { .. }
                | Self::NotUnderstood { .. }
        )
    }
}

/// At which step no connection came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// The name has no address.
    Dns,
    /// No server listens there.
    Refused,
    /// The certificate or the handshake failed.
    Tls,
    /// No answer to the attempt.
    Timeout,
    /// Anything else on the way.
    Route,
}

impl Unreachable {
    fn advice(self) -> &'static str {
        match self {
            Self::Dns => "Check the host name in the url and this machine's DNS",
            Self::Refused => "Check that the upstream is running and the port in the url",
            Self::Tls => "Check https or http in the url, and that this machine trusts the certificate",
            Self::Timeout | Self::Route => "Check the url, the network and any proxy or firewall in between",
        }
    }
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dns => "its name cannot be resolved",
            Self::Refused => "the connection was refused",
            Self::Tls => "no trusted connection could be made",
            Self::Timeout => "the connection attempt timed out",
            Self::Route => "there is no way to it",
        })
    }
}

fn wait_advice(retry_after: Option<Duration>) -> String {
    match retry_after {
        Some(wait) => format!("It asks to wait {} s", wait.as_secs_f64().ceil()),
        None => "Wait, or check the account's quota".to_owned(),
    }
}
