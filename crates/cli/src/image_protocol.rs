//! Images in terminal output, if the terminal supports them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::sixel::sixel;

/// Bytes of an image that is shown.
const MAX_IMAGE: usize = 4 << 20;
/// Bytes of base64 in one sequence of the kitty protocol.
const CHUNK: usize = 4096;

/// Beginnings of `TERM` in terminals that show Sixel.
const SIXEL_TERMS: [&str; 4] = ["foot", "mlterm", "contour", "yaft"];
/// The first Konsole that does, 22.04.
const SIXEL_KONSOLE: u32 = 220_400;
/// Pixels of a line in a terminal that does not report them.
const UNKNOWN_WIDTH: usize = 800;

/// The way in which a terminal shows images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageProtocol {
    /// That of kitty and Ghostty.
    Kitty,
    /// That of iTerm2 and WezTerm.
    Iterm,
    /// Sixel: foot, mlterm, Contour, mintty, Konsole and Windows Terminal.
    Sixel,
}

impl ImageProtocol {
    /// Finds the protocol by variables that terminals set; `None` for all others, and in tmux and screen, which do not pass images on.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let (term, program) = (variable("TERM").unwrap_or_default(), variable("TERM_PROGRAM").unwrap_or_default());
        if term.starts_with("screen") || term.starts_with("tmux") {
            return None;
        }
        match (term.as_str(), program.as_str()) {
            ("xterm-kitty" | "xterm-ghostty", _) | (_, "ghostty") => Some(Self::Kitty),
            (_, "iTerm.app" | "WezTerm") => Some(Self::Iterm),
            (_, "mintty" | "contour") => Some(Self::Sixel),
            (term, _) if SIXEL_TERMS.iter().any(|prefix| term.starts_with(prefix)) => Some(Self::Sixel),
            _ if variable("WT_SESSION").is_some() => Some(Self::Sixel),
            _ => {
                let konsole = variable("KONSOLE_VERSION").and_then(|version| version.parse::<u32>().ok());
                konsole.filter(|version| *version >= SIXEL_KONSOLE).map(|_| Self::Sixel)
            }
        }
    }

    /// The sequence that shows an image, if this terminal can. An image wider than the terminal, which is given in columns and pixels, is
    /// scaled down.
    pub(crate) fn show(self, mime: &str, image: &[u8], terminal: Option<(u16, u16)>) -> Option<String> {
        if image.len() > MAX_IMAGE {
            return None;
        }
        let data = BASE64_STANDARD.encode(image);
        match self {
            Self::Iterm => Some(format!("\u{1b}]1337;File=inline=1;size={}:{data}\u{7}\n", image.len())),
            Self::Kitty if mime == "image/png" => {
                let too_wide =
                    |(_, pixels): &(u16, u16)| width_of(image).is_some_and(|width| width > u32::from(*pixels));
                Some(kitty(&data, terminal.filter(too_wide).map(|(columns, _)| columns)))
            }
            Self::Sixel if mime == "image/png" => {
                sixel(image, terminal.map_or(UNKNOWN_WIDTH, |(_, pixels)| usize::from(pixels)))
            }
            Self::Kitty | Self::Sixel => None,
        }
    }
}

/// An image as PNG in chunks. The terminal is told to send no answer, which would not be read.
fn kitty(data: &str, columns: Option<u16>) -> String {
    let mut out = String::with_capacity(data.len() + data.len() / 64);
    let mut rest = data;
    let mut keys = match columns {
        Some(columns) => format!("a=T,f=100,q=2,c={columns},"),
        None => "a=T,f=100,q=2,".to_owned(),
    };
    while !rest.is_empty() {
        let (chunk, next) = rest.split_at(CHUNK.min(rest.len()));
        let more = u8::from(!next.is_empty());
        out.push_str(&format!("\u{1b}_G{keys}m={more};{chunk}\u{1b}\\"));
        keys.clear();
        rest = next;
    }
    out.push('\n');
    out
}

/// The width of a PNG, in pixels.
fn width_of(png: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(png.get(16..20)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_known_by_what_they_say() {
        let of = |term: &str, program: &str| {
            ImageProtocol::of(|name| match name {
                "TERM" => Some(term.to_owned()),
                "TERM_PROGRAM" => Some(program.to_owned()),
                _ => None,
            })
        };
        assert_eq!(of("xterm-kitty", ""), Some(ImageProtocol::Kitty));
        assert_eq!(of("xterm-256color", "iTerm.app"), Some(ImageProtocol::Iterm));
        assert_eq!(of("foot", ""), Some(ImageProtocol::Sixel));
        let protocol = |name: &'static str, value: &'static str| {
            ImageProtocol::of(|variable| (variable == name).then(|| value.to_owned()))
        };
        assert_eq!(protocol("WT_SESSION", "0"), Some(ImageProtocol::Sixel));
        assert_eq!(protocol("KONSOLE_VERSION", "220400"), Some(ImageProtocol::Sixel));
        assert_eq!(protocol("KONSOLE_VERSION", "211200"), None);
        assert_eq!(of("tmux-256color", "iTerm.app"), None);
        assert_eq!(of("xterm-256color", "Apple_Terminal"), None);
    }

    #[test]
    fn an_image_goes_in_chunks_and_what_cannot_be_shown_does_not() {
        let image = vec![7; 5000];
        let sequence = ImageProtocol::Kitty.show("image/png", &image, None).unwrap();
        let parts: Vec<&str> = sequence.trim_end().split_terminator("\u{1b}\\").collect();
        assert!(parts.len() == 2 && parts[0].starts_with("\u{1b}_Ga=T,f=100,q=2,m=1;"), "{parts:?}");
        let data: String = parts.iter().map(|part| part.split_once(';').unwrap().1).collect();
        assert!(parts[1].starts_with("\u{1b}_Gm=0;") && BASE64_STANDARD.decode(data).unwrap() == image);
        assert_eq!(ImageProtocol::Kitty.show("image/jpeg", &image, None), None);
        assert!(ImageProtocol::Iterm.show("image/jpeg", b"hi", None).unwrap().ends_with("size=2:aGk=\u{7}\n"));
        assert_eq!(ImageProtocol::Iterm.show("image/png", &vec![0; MAX_IMAGE + 1], None), None);
    }

    #[test]
    fn an_image_that_is_wider_than_the_terminal_is_made_to_fit() {
        let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        image.extend(640u32.to_be_bytes());
        let shown = |terminal| ImageProtocol::Kitty.show("image/png", &image, terminal).unwrap();
        assert!(shown(Some((40, 320))).starts_with("\u{1b}_Ga=T,f=100,q=2,c=40,m=0;"));
        for terminal in [None, Some((80, 640))] {
            assert!(shown(terminal).starts_with("\u{1b}_Ga=T,f=100,q=2,m=0;"));
        }
    }
}
