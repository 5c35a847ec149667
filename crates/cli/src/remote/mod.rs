//! Sandboxes of a running server, through its E2B API: over the Unix socket of a data directory, or at an address.

mod error;
mod stream;

use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_wire::e2b::filesystem::{EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, PathRequest};
use aludel_wire::e2b::process::StartRequest;
use aludel_wire::e2b::{ListedSandbox, NewSandbox, Refresh, Sandbox, SandboxDetail};
use anyhow::Context as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::stream::CommandEvents;

use crate::config::{KeySource, RawValue, ValueOrigin};
use crate::context::CommandContext;
use crate::exit::{usage, words};
use crate::{socket, terminal};

/// The port of commands and files.
const ENVD: u16 = 49983;
/// Pages of a list that are read, of 100 sandboxes each.
const MAX_PAGES: usize = 100;
/// Bytes of an answer that is read as a whole.
const MAX_ANSWER: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");
/// Beginning of the headers by which a server finds a sandbox.
const OURS: &str = "e2b-";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// A server, and the way to it.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Address of a server, for example http://127.0.0.1:8080 [default: the one that runs on the data directory]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    url: Option<String>,
    /// Place of its key: env:NAME or file:PATH; without it, sandboxes at the data directory's server are those of clients without a key
    #[arg(long, global = true, value_name = "WHERE", help_heading = "Server")]
    key: Option<String>,
}

/// A server that runs.
#[derive(Debug, Clone)]
pub(crate) struct RemoteServer {
    client: Client,
    /// The key, only for the control plane: a sandbox has its own token, and its programs must not learn a key.
    key: Option<HeaderValue>,
    base: String,
    /// A description of the server, for errors.
    location: String,
}

impl RemoteServer {
    /// The server that the arguments name. Nothing is asked yet.
    pub(crate) fn of(args: &ServerArgs, context: &CommandContext) -> anyhow::Result<Self> {
        let mut sent = None;
        if let Some(text) = &args.key {
            let given = RawValue { text: text.clone(), origin: ValueOrigin::Flag("--key") };
            let key = KeySource::parse(given, "key")?.fetch_for("the key of the server", &context.host)?;
            if let Some(key) = key {
                let mut value = HeaderValue::from_str(key.expose()).map_err(|_| usage("--key: it is no key"))?;
                value.set_sensitive(true);
                sent = Some(value);
            }
        }
        rustls::crypto::ring::default_provider().install_default().ignore("the first installation counts");
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).redirect(reqwest::redirect::Policy::none());
        let (client, base, location) = match &args.url {
            Some(url) => {
                let url = url.trim_end_matches('/');
                let is_one = reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
                if !is_one {
                    return Err(usage(format!("--url {url}: it must be an address like http://127.0.0.1:8080")));
                }
                (client, url.to_owned(), url.to_owned())
            }
            None => {
                let data = &context.config.server.data;
                let path = socket::path(data).map_err(usage)?;
                let location = format!("the data directory {}", data.display());
                (client.unix_socket(path), "http://localhost".to_owned(), location)
            }
        };
        let client = client.build().context("cannot make a client")?;
        Ok(Self { client, key: sent, base, location })
    }

    /// Calls the control plane.
    async fn call(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> anyhow::Result<Response> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header(API_KEY, key);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(serde_json::to_vec(body)?);
        }
        self.send(request).await
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let response = request.send().await.map_err(|error| error::unreachable(&self.location, error))?;
        if response.status().is_success() { Ok(response) } else { Err(error::refused(&self.location, response).await) }
    }

    /// Lists all sandboxes, the newest first.
    pub(crate) async fn list(&self) -> anyhow::Result<Vec<ListedSandbox>> {
        let (mut all, mut path) = (Vec::new(), "/v2/sandboxes".to_owned());
        for _page in 0..MAX_PAGES {
            let response = self.call(Method::GET, &path, None::<&()>).await?;
            let next = response.headers().get(NEXT_TOKEN).and_then(|token| token.to_str().ok()).map(str::to_owned);
            all.append(&mut read::<Vec<_>>(response).await?);
            match next {
                Some(token) if token.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                    path = format!("/v2/sandboxes?nextToken={token}");
                }
                _ => break,
            }
        }
        Ok(all)
    }

    /// Makes a sandbox.
    pub(crate) async fn create(&self, new: &NewSandbox) -> anyhow::Result<Remote> {
        let answer = self.call(Method::POST, "/v2/sandboxes", Some(new)).await;
        // An unknown template.
        let answer = answer.map_err(|error| if error::is_not_found(&error) { usage(words(&error)) } else { error });
        let made: Sandbox = read(answer?).await?;
        let token = made.envd_access_token.unwrap_or_default();
        // The size is known of sandboxes that are found.
        Ok(Remote { server: self.clone(), id: made.sandbox_id, token, disk: 0 })
    }

    /// Finds a sandbox by its id, a prefix of its id, or its name.
    pub(crate) async fn find(&self, named: &str) -> anyhow::Result<Remote> {
        let id = self.id_of(named).await?;
        let path = format!("/sandboxes/{id}");
        let detail: SandboxDetail = read(self.call(Method::GET, &path, None::<&()>).await?).await?;
        let disk = detail.listed.disk_size_mb.saturating_mul(1 << 20);
        let token = detail.envd_access_token.unwrap_or_default();
        Ok(Remote { server: self.clone(), id, token, disk })
    }

    async fn id_of(&self, named: &str) -> anyhow::Result<String> {
        let all = self.list().await?;
        if all.iter().any(|one| one.sandbox_id == named) {
            return Ok(named.to_owned());
        }
        let name = |one: &ListedSandbox| one.metadata.get("name").is_some_and(|name| name == named);
        let mut found: Vec<_> = all.iter().filter(|one| name(one)).collect();
        if found.is_empty() && !named.is_empty() {
            found = all.iter().filter(|one| one.sandbox_id.starts_with(named)).collect();
        }
        let shown = terminal::name(named);
        match found.as_slice() {
            [one] => Ok(one.sandbox_id.clone()),
            [] => {
                Err(usage(format!("there is no sandbox {shown} at {}; `aludel sandbox ls` lists them", self.location)))
            }
            several => Err(usage(format!("{} sandboxes are called {shown}; give an id", several.len()))),
        }
    }
}

/// A sandbox at a server.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    server: RemoteServer,
    pub(crate) id: String,
    token: String,
    /// Bytes that its files can take.
    pub(crate) disk: u64,
}

impl Remote {
    /// Ends it.
    pub(crate) async fn kill(&self) -> anyhow::Result<()> {
        self.server.call(Method::DELETE, &format!("/sandboxes/{}", self.id), None::<&()>).await.map(drop)
    }

    /// Lets it live for this time from now on at least.
    pub(crate) async fn extend_lifetime(&self, time: Duration) -> anyhow::Result<()> {
        let body = Refresh { duration: Some(i64::try_from(time.as_secs()).unwrap_or(i64::MAX)) };
        self.server.call(Method::POST, &format!("/sandboxes/{}/refreshes", self.id), Some(&body)).await.map(drop)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.server.client.request(method, format!("{}{path}", self.server.base));
        request.header(SANDBOX_ID, &self.id).header(SANDBOX_PORT, ENVD).header(ACCESS_TOKEN, &self.token)
    }

    /// Sends a request to a port of its programs, and returns their answer. The request's headers are untrusted: none may lead to another
    /// sandbox, another port or the server itself.
    pub(crate) async fn send_to_port(
        &self,
        port: u16,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        body: reqwest::Body,
    ) -> anyhow::Result<Response> {
        let ours = headers.keys().filter(|name| name.as_str().starts_with(OURS) || **name == ACCESS_TOKEN).cloned();
        for name in ours.collect::<Vec<_>>() {
            headers.remove(name);
        }
        headers.insert(SANDBOX_ID, HeaderValue::from_str(&self.id).context("the sandbox's id is no header")?);
        headers.insert(SANDBOX_PORT, port.into());
        let request = self.server.client.request(method, format!("{}{path}", self.server.base));
        let request = request.headers(headers).body(body);
        let answer = request.send().await;
        answer.map_err(|error| error::unreachable(&self.server.location, error))
    }

    /// Calls a method of the sandbox's services that has one answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, method: &str, message: &impl Serialize) -> anyhow::Result<T> {
        let body = serde_json::to_vec(message)?;
        let request = self.request(Method::POST, method).header(CONTENT_TYPE, "application/json").body(body);
        read(self.server.send(request).await?).await
    }

    /// Calls a method that answers with a stream of a command's events.
    pub(crate) async fn stream(&self, method: &str, message: &impl Serialize) -> anyhow::Result<CommandEvents> {
        let request = self.request(Method::POST, method).header(CONTENT_TYPE, "application/connect+json");
        Ok(CommandEvents::new(self.server.send(request.body(stream::frame(message)?)).await?))
    }

    /// Starts a command.
    pub(crate) async fn start(&self, request: &StartRequest) -> anyhow::Result<CommandEvents> {
        self.stream("/process.Process/Start", request).await
    }

    /// Describes a file; `None` if it does not exist.
    pub(crate) async fn stat(&self, path: &str) -> anyhow::Result<Option<EntryInfo>> {
        let asked = self.call("/filesystem.Filesystem/Stat", &PathRequest { path: path.to_owned() }).await;
        match asked {
            Ok(EntryResponse { entry }) => Ok(Some(entry)),
            Err(error) if error::is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists a directory.
    pub(crate) async fn list(&self, path: &str) -> anyhow::Result<Vec<EntryInfo>> {
        let request = ListDirRequest { path: path.to_owned(), depth: 1 };
        let listed: ListDirResponse = self.call("/filesystem.Filesystem/ListDir", &request).await?;
        Ok(listed.entries)
    }

    /// Makes a directory, unless it is there.
    pub(crate) async fn make_directory(&self, path: &str) -> anyhow::Result<()> {
        let request = PathRequest { path: path.to_owned() };
        match self.call::<serde_json::Value>("/filesystem.Filesystem/MakeDir", &request).await {
            Err(error) if !error::is_there_already(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Begins to read a file.
    pub(crate) async fn download(&self, path: &str) -> anyhow::Result<Response> {
        self.server.send(self.request(Method::GET, &files(path)?)).await
    }

    /// Writes a file.
    pub(crate) async fn upload(&self, path: &str, content: impl Into<reqwest::Body>) -> anyhow::Result<()> {
        let request = self.request(Method::POST, &files(path)?);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(content);
        self.server.send(request).await.map(drop)
    }
}

/// The path of the server for a file of a sandbox.
fn files(path: &str) -> anyhow::Result<String> {
    let url = reqwest::Url::parse_with_params("http://localhost/files", [("path", path)])?;
    Ok(format!("/files?{}", url.query().unwrap_or_default()))
}

/// Reads a whole answer.
async fn read<T: DeserializeOwned>(mut response: Response) -> anyhow::Result<T> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the server's answer broke off")? {
        bytes.extend_from_slice(&chunk);
        anyhow::ensure!(bytes.len() <= MAX_ANSWER, "the server's answer is longer than {MAX_ANSWER} bytes");
    }
    serde_json::from_slice(&bytes).context("the server does not answer as E2B's API does; is --url right?")
}
