//! Types of files that clients send.

/// The MIME type for a name's extension, for clients that do not send one.
pub(crate) fn mime_of(name: &str, said: Option<&str>) -> String {
    const UNKNOWN: &str = "application/octet-stream";
    let plain = |said: &&str| said.len() < 128 && said.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    match said.filter(plain) {
        Some(said) if said != UNKNOWN && said.contains('/') => said.to_owned(),
        _ => aludel_engine::execution::mime_of(name).to_owned(),
    }
}
