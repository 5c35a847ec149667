//! Links to files of containers that work without a key, for people who read an answer in a chat product.
//!
//! A link contains its file, its tenant and its expiry, and is signed with a secret of this server: `/v1/links/TOKEN/NAME`. The name at the
//! end is only for people.

use std::sync::Arc;

use aludel_engine::SessionFile;
use aludel_store::{SessionFileId, SessionId, Tenant, now};
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use percent_encoding::utf8_percent_encode;
use sha2::Sha256;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, ENCODED, show};
use crate::workspace_path::within_workspace;

/// Beginning of every link's path.
const PATH: &str = "/v1/links/";
/// The path of links as a route.
pub(crate) const ROUTE: &str = "/v1/links/{token}/{name}";
/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 32;
/// The most links of a text that are checked, from its end.
const MAX_LINKS: usize = 16;
/// Characters of a token: more than ours have.
const MAX_TOKEN: usize = 1024;
/// Seconds for which a link works, unless its file is removed before.
const LINK_LIFE_SECONDS: i64 = 30 * 24 * 3600;

/// The file that a link leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileLink {
    tenant: Tenant,
    container: SessionId,
    file: SessionFileId,
    /// Seconds since 1970.
    expires_at: i64,
}

/// Makes links to the files of one container.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    secret: Arc<str>,
    /// The server's public address, without a slash at its end.
    base: String,
    tenant: Tenant,
    container: SessionId,
    expires_at: i64,
}

impl Links {
    /// Links to this container's files, below an address such as `https://aludel.example.com`.
    pub(crate) fn to(secret: Arc<str>, base: &str, tenant: &Tenant, container: &SessionId) -> Self {
        let (tenant, container) = (tenant.clone(), container.clone());
        Self { secret, base: base.to_owned(), tenant, container, expires_at: now() + LINK_LIFE_SECONDS }
    }

    /// Links with this expiry, seconds since 1970, so that they can be made again later.
    pub(crate) fn until(self, expires_at: i64) -> Self {
        Self { expires_at, ..self }
    }

    /// The time until which they work, seconds since 1970.
    pub(crate) fn expires_at(&self) -> i64 {
        self.expires_at
    }

    /// Links for tests.
    #[cfg(test)]
    pub(crate) fn for_tests(base: &str, tenant: &Tenant, container: &SessionId) -> Self {
        Self::to(Arc::from("secret"), base, tenant, container)
    }

    /// The container of the files.
    pub(crate) fn container(&self) -> &SessionId {
        &self.container
    }

    /// Links to files as a list in Markdown, each with its size.
    pub(crate) fn list(&self, files: &[SessionFile]) -> String {
        let entry = |file| format!("- [{}]({}) ({})", label(file), self.link(file), size(file.bytes));
        files.iter().map(entry).collect::<Vec<String>>().join("\n")
    }

    /// A link to a file.
    pub(crate) fn link(&self, file: &SessionFile) -> String {
        let (tenant, container, expires_at) = (self.tenant.clone(), self.container.clone(), self.expires_at);
        let token = FileLink { tenant, container, file: file.id.clone(), expires_at }.token(&self.secret);
        let name = file.path.rsplit('/').next().unwrap_or_default();
        format!("{}{PATH}{token}/{}", self.base, utf8_percent_encode(name, ENCODED))
    }
}

impl FileLink {
    /// Parses the link of this path; `None` if it is not ours or has expired.
    pub(crate) async fn read(app: &App, path: &str) -> Result<Option<Self>, ApiError> {
        let Some((token, _name)) = path.strip_prefix(PATH).and_then(|rest| rest.split_once('/')) else {
            return Ok(None);
        };
        let link = Self::of_token(token, &app.link_secret().await?);
        let link = link.ok_or_else(|| ApiError::not_found("This link is not one of this server's."))?;
        if link.expires_at <= now() {
            return Err(ApiError::not_found("This link has expired."));
        }
        Ok(Some(link))
    }

    /// The tenant that it belongs to.
    pub(crate) fn caller(&self) -> Caller {
        Caller(self.tenant.clone())
    }

    pub(crate) fn token(&self, secret: &str) -> String {
        let Self { tenant, container, file, expires_at } = self;
        sign(secret, &format!("{}\n{container}\n{file}\n{expires_at}", tenant.as_str()))
    }

    pub(crate) fn of_token(token: &str, secret: &str) -> Option<Self> {
        let text = signed(secret, token)?;
        let mut fields = text.split('\n');
        Some(Self {
            tenant: Tenant::of_signed(fields.next()?),
            container: SessionId::parse(fields.next()?)?,
            file: SessionFileId::parse(fields.next()?)?,
            expires_at: fields.next()?.parse().ok()?,
        })
    }
}

/// A file's name as the text of a link in Markdown.
///
/// Nothing is escaped by a backslash: chat products take `\(` and `\[` for the beginning of a formula. A name with characters that mean
/// something is code instead.
fn label(file: &SessionFile) -> String {
    let name = name_of(file);
    if marks_of(&name).next().is_none() {
        return name;
    }
    format!("`{}`", name.replace('`', "'"))
}

/// A file's name as the description of a picture in Markdown, which products show as it is.
pub(crate) fn description(file: &SessionFile) -> String {
    let mut name = name_of(file);
    let marks: Vec<usize> = marks_of(&name).collect();
    marks.into_iter().for_each(|mark| name.replace_range(mark..=mark, "-"));
    name
}

fn name_of(file: &SessionFile) -> String {
    within_workspace(&file.path).replace(char::is_control, " ")
}

/// The places of characters that mean something in Markdown and its usual extensions, each of one byte.
fn marks_of(name: &str) -> impl Iterator<Item = usize> {
    let is_inside = |index: usize| {
        let (before, after) = (name[..index].chars().next_back(), name[index + 1..].chars().next());
        before.is_some_and(char::is_alphanumeric) && after.is_some_and(char::is_alphanumeric)
    };
    name.char_indices().filter_map(move |(index, character)| match character {
        '_' => (!is_inside(index)).then_some(index),
        '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '&' | '~' | '$' | '|' | '^' | '{' | '}' | ':' => Some(index),
        _ => None,
    })
}

fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MB", bytes as f64 / 1_048_576.0),
    }
}

/// Signs a text, whose ids show its kind, and returns the token.
pub(crate) fn sign(secret: &str, text: &str) -> String {
    let mut token = text.as_bytes().to_vec();
    token.extend_from_slice(&signature(secret, text.as_bytes()).finalize().into_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

/// Returns the text of a token that this server made.
pub(crate) fn signed(secret: &str, token: &str) -> Option<String> {
    let token = BASE64_URL_SAFE_NO_PAD.decode(Some(token).filter(|token| token.len() <= MAX_TOKEN)?).ok()?;
    let (text, signed) = token.split_at_checked(token.len().checked_sub(SIGNATURE_BYTES)?)?;
    signature(secret, text).verify_slice(signed).ok()?;
    String::from_utf8(text.to_vec()).ok()
}

fn signature(secret: &str, text: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "a key of any length will do")]
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length will do");
    mac.update(text);
    mac
}

/// The base address of links: the operator's setting, or the address that the client used.
pub(crate) fn base(app: &App, headers: &HeaderMap) -> String {
    let host = || headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    app.url.clone().unwrap_or_else(|| format!("http://{}", host()))
}

/// The container of the last of our links in a text, if it belongs to the tenant.
pub(crate) async fn container_in(app: &App, tenant: &Tenant, text: &str) -> Result<Option<SessionId>, ApiError> {
    let secret = app.link_secret().await?;
    let tokens = text.rsplit(PATH).take(text.matches(PATH).count().min(MAX_LINKS));
    let links = tokens.filter_map(|rest| FileLink::of_token(rest.split_once('/')?.0, &secret));
    Ok(links.filter(|link| link.tenant == *tenant).map(|link| link.container).next())
}

/// `GET /v1/links/{token}/{name}`: the file. Pictures are shown, and everything else is saved.
pub(crate) async fn follow(
    State(app): State<Arc<App>>,
    Extension(link): Extension<FileLink>,
) -> Result<Response, ApiError> {
    let FileLink { tenant, container, file, .. } = link;
    let open = app.store.open_session_file(&tenant, &container, &file).await?;
    let (file, content) = open.ok_or_else(|| ApiError::not_found("The file of this link is not kept any more."))?;
    Ok(show(content, file.bytes, &file.mime, &file.path))
}

#[cfg(test)]
mod tests {
    use aludel_engine::sessions::WORKSPACE;
    use aludel_store::FileOrigin;

    use super::*;

    fn link() -> FileLink {
        let (container, file) = (SessionId::new(), SessionFileId::new());
        FileLink { tenant: Tenant::local(), container, file, expires_at: 7 }
    }

    #[test]
    fn a_token_is_read_by_whoever_made_it_and_as_it_was_made() {
        let token = link().token("secret");
        assert_eq!(FileLink::of_token(&token, "secret").map(|link| link.expires_at), Some(7));
        assert_eq!(FileLink::of_token(&token, "another"), None);
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&token).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(FileLink::of_token(&BASE64_URL_SAFE_NO_PAD.encode(changed), "secret"), None, "byte {index}");
        }
        for token in ["", "AAAA", "=", &"A".repeat(MAX_TOKEN + 4)] {
            assert_eq!(FileLink::of_token(token, "secret"), None);
        }
    }
    #[test]
    fn a_name_is_readable_as_a_link_and_as_a_description() {
        for (name, as_link, as_description) in [
            ("Ergebnis Übersicht (1).csv", "Ergebnis Übersicht (1).csv", "Ergebnis Übersicht (1).csv"),
            ("b x 100%.csv", "b x 100%.csv", "b x 100%.csv"),
            ("sub/my_file-2.csv", "sub/my_file-2.csv", "sub/my_file-2.csv"),
            ("_a_.csv", "`_a_.csv`", "-a-.csv"),
            ("r[1].csv", "`r[1].csv`", "r-1-.csv"),
            ("](http://evil)[.csv", "`](http://evil)[.csv`", "-(http-//evil)-.csv"),
            ("$x$ `y`\n&amp;.csv", "`$x$ 'y' &amp;.csv`", "-x- -y- -amp;.csv"),
        ] {
            let id = SessionFileId::new();
            let file = SessionFile {
                id,
                path: format!("{WORKSPACE}/{name}"),
                bytes: 1,
                mime: "text/csv".into(),
                source: FileOrigin::Assistant,
                created_at: 0,
                published_id: None,
            };
            assert_eq!((label(&file).as_str(), description(&file).as_str()), (as_link, as_description));
        }
    }
}
