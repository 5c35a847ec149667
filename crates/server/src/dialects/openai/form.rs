//! One field of a form that is forwarded unchanged.
//!
//! The model's server parses the form again with its own parser. So only forms that all parsers read the same way are accepted: anything
//! that some of them tolerate is refused.

/// The reason for which a form is refused.
type FormRefusal = &'static str;

/// The boundary of a form's parts, by its `Content-Type`; `None` for any other body.
pub(super) fn boundary(content_type: &str) -> Option<Result<&str, FormRefusal>> {
    let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut found = None;
    for parameter in parameters.split(';') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if !name.trim().eq_ignore_ascii_case("boundary") {
            continue;
        }
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
        if found.is_some() || value.is_empty() || value.len() > 70 || !value.bytes().all(is_plain) {
            return Some(Err("its boundary is not one plain word"));
        }
        found = Some(value);
    }
    Some(found.ok_or("it has no boundary"))
}

/// Finds the text of a field; `None` if there is no such field.
pub(super) fn find<'a>(form: &'a [u8], boundary: &str, name: &str) -> Result<Option<&'a str>, FormRefusal> {
    let delimiter = format!("\r\n--{boundary}");
    let delimiter = delimiter.as_bytes();
    let mut rest = form.strip_prefix(delimiter.get(2..).unwrap_or_default()).ok_or("it does not begin with a part")?;
    let mut found = None;
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let (head, body) = split(part, b"\r\n\r\n").ok_or("a part has no end")?;
        let (content, next) = split(body, delimiter).ok_or("a part has no end")?;
        if memchr::memmem::find(content, delimiter.get(1..).unwrap_or_default()).is_some() {
            return Err("the boundary stands in a part");
        }
        let field = Field::read(std::str::from_utf8(head).map_err(|_| "the head of a part is not UTF-8")?)?;
        if field.name.eq_ignore_ascii_case(name) {
            if found.is_some() {
                return Err("a field stands in it twice");
            }
            if field.name != name || field.has_more {
                return Err("a field has more than a name");
            }
            found = Some(std::str::from_utf8(content).map_err(|_| "a field is not UTF-8")?);
        }
        rest = next;
    }
    match rest {
        b"--" | b"--\r\n" => Ok(found),
        _ => Err("more follows its end"),
    }
}

/// The head of a part.
struct Field<'a> {
    name: &'a str,
    /// True if it has more than a field's name: a file's name, or an encoding.
    has_more: bool,
}

impl<'a> Field<'a> {
    fn read(head: &'a str) -> Result<Self, FormRefusal> {
        let (mut disposition, mut has_more) = (None, false);
        for line in head.split("\r\n") {
            let (header, value) = line.split_once(':').ok_or("the head of a part cannot be read")?;
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if header.is_empty()
                || !header.bytes().all(is_name)
                || value.bytes().any(|byte| byte < b' ' && byte != b'\t')
            {
                return Err("the head of a part cannot be read");
            }
            if header.eq_ignore_ascii_case("content-disposition") {
                if disposition.replace(value).is_some() {
                    return Err("a part has two names");
                }
            } else {
                has_more |= !header.eq_ignore_ascii_case("content-type");
            }
        }
        let rest = disposition.ok_or("a part has no name")?.trim();
        let mut rest = rest.strip_prefix("form-data").ok_or("a part is no field")?;
        let mut name = None;
        while !rest.is_empty() {
            let Parameter { key, value, after } = Parameter::read(rest)?;
            match (key.to_ascii_lowercase().as_str(), name) {
                ("name", None) => name = Some(value),
                ("name" | "name*", _) => return Err("a part has two names"),
                _ => has_more = true,
            }
            rest = after;
        }
        Ok(Self { name: name.ok_or("a part has no name")?, has_more })
    }
}

/// A parameter of a disposition: `; key="value"`.
struct Parameter<'a> {
    key: &'a str,
    value: &'a str,
    after: &'a str,
}

impl<'a> Parameter<'a> {
    fn read(text: &'a str) -> Result<Self, FormRefusal> {
        const WRONG: FormRefusal = "the name of a part cannot be read";
        let text = text.trim_start().strip_prefix(';').ok_or(WRONG)?.trim_start();
        let (key, value) = text.split_once('=').ok_or(WRONG)?;
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-*".contains(&byte)) {
            return Err(WRONG);
        }
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(WRONG)?,
            None => value.split_at(value.find([';', ' ', '\t']).unwrap_or(value.len())),
        };
        // Parsers disagree about a quote after a backslash.
        if value.ends_with('\\') || value.contains('"') {
            return Err(WRONG);
        }
        Ok(Self { key, value, after: after.trim() })
    }
}

fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memchr::memmem::find(bytes, mark)?;
    Some((bytes.get(..at)?, bytes.get(at + mark.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form of parts, each with parameters after `form-data` and a content.
    fn form(parts: &[(&str, &str)]) -> String {
        let parts = parts.iter().map(|(name, content)| {
            format!("--x\r\nContent-Disposition: form-data{name}\r\nContent-Type: text/plain\r\n\r\n{content}\r\n")
        });
        parts.collect::<String>() + "--x--\r\n"
    }

    #[test]
    fn the_field_is_found_among_files() {
        let parts = [
            ("; name=\"file\"; filename=\"a; name=model; \\b.wav\"", "name=\"model\"\r\n\r\nother"),
            ("; filename*=utf-8''a; name=prompt", "\r\n\r\n"),
            ("; name=\"model\"", "whisper"),
        ];
        let whole = form(&parts);
        assert_eq!(find(whole.as_bytes(), "x", "model"), Ok(Some("whisper")));
        assert_eq!(find(whole.as_bytes(), "x", "language"), Ok(None));
        for cut in 1..whole.len() - 2 {
            assert!(find(&whole.as_bytes()[..cut], "x", "model").is_err() || cut == whole.len() - 2, "{cut}");
        }
    }

    #[test]
    fn forms_that_can_be_read_in_two_ways_are_refused() {
        let model = ("; name=\"model\"", "a");
        for other in [
            ("; name=\"model\"", "b"),
            ("; name=model", "b"),
            ("; name=\"MODEL\"", "b"),
            ("; name=\"x\"; name=\"model\"", "b"),
            ("; name=\"x\"; name*=utf-8''model", "b"),
            ("; name=\"x\\\"; name=\"model\"", "b"),
            ("; filename=\"x", "b"),
            ("; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"", "b"),
            ("; name=\"x\"\nContent-Disposition: form-data; name=\"model\"", "b"),
            ("; name=\"x\"\r\n folded: 1", "b"),
            ("", "b"),
            ("; name=\"x\"", "b\n--x\nContent-Disposition: form-data; name=\"model\"\n\nb"),
        ] {
            let form = form(&[model, other]);
            assert!(find(form.as_bytes(), "x", "model").is_err(), "{form}");
        }
        for alone in ["; name=\"model\"; filename=\"a\"", "; name=\"model\"\r\nContent-Transfer-Encoding: base64"] {
            assert!(find(form(&[(alone, "a")]).as_bytes(), "x", "model").is_err(), "{alone}");
        }
        for around in [format!("\r\n{}", form(&[model])), format!("{}--x\r\n", form(&[model]))] {
            assert!(find(around.as_bytes(), "x", "model").is_err(), "{around}");
        }
    }

    #[test]
    fn the_boundary_is_one_plain_word() {
        let plain = "multipart/form-data; charset=utf-8; Boundary=\"x\"";
        assert_eq!(boundary(plain), Some(Ok("x")));
        assert_eq!(boundary("application/json; boundary=x"), None);
        for wrong in [
            "",
            "; boundary=",
            "; boundary=a; boundary=b",
            "; a=\"; boundary=x; b=\"; boundary=y",
            "; boundary=\"a b\"",
        ] {
            let said = format!("multipart/form-data{wrong}");
            assert!(boundary(&said).is_some_and(|found| found.is_err()), "{wrong}");
        }
    }
}
