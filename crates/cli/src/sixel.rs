//! Images for terminals that support Sixel: six rows of pixels at a time, of at most 256 colours.

use std::collections::HashMap;
use std::fmt::Write as _;

use color_quant::NeuQuant;
use png::{ColorType, Decoder, Limits, Transformations};

/// Colours of an image.
const MAX_COLORS: usize = 256;
/// Pixels of an image that is shown.
const MAX_PIXELS: u32 = 16 << 20;
/// Rows of an image; a higher one would scroll earlier output out of sight.
const MAX_ROWS: usize = 4096;
/// Divisor of the number of pixels that are examined to find the colours of a photograph.
const SAMPLE: i32 = 10;
/// Rows of one band.
const BAND: usize = 6;
/// Byte of a band without a pixel; each row's bit is added to it.
const EMPTY: u8 = b'?';

/// An image without transparency.
struct Pixels {
    width: usize,
    /// Row by row.
    colors: Vec<[u8; 3]>,
}

/// The sequence that shows a PNG, at most this wide in pixels; `None` if it cannot be decoded or is too large.
pub(crate) fn sixel(png: &[u8], most_wide: usize) -> Option<String> {
    let image = read(png)?.fit(most_wide);
    let height = image.colors.len() / image.width;
    if height > MAX_ROWS {
        return None;
    }
    let (palette, indexes) = with_few_colors(&image.colors);
    let mut out = format!("\u{1b}P0;1q\"1;1;{};{height}", image.width);
    for (number, color) in palette.iter().enumerate() {
        let [red, green, blue] = color.map(|part| (u32::from(part) * 100 + 127) / 255);
        // Writing to a string cannot fail.
        let _ = write!(out, "#{number};2;{red};{green};{blue}");
    }
    for band in indexes.chunks(image.width * BAND) {
        write_band(band, image.width, palette.len(), &mut out);
    }
    out.push_str("\u{1b}\\\n");
    Some(out)
}

fn read(png: &[u8]) -> Option<Pixels> {
    let mut decoder = Decoder::new_with_limits(std::io::Cursor::new(png), Limits { bytes: 4 * MAX_PIXELS as usize });
    decoder.set_transformations(Transformations::normalize_to_color8() | Transformations::ALPHA);
    let mut reader = decoder.read_info().ok()?;
    let (width, height) = reader.info().size();
    if width.checked_mul(height)? > MAX_PIXELS {
        return None;
    }
    let mut bytes = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut bytes).ok()?;
    bytes.truncate(frame.buffer_size());
    let colors = match frame.color_type {
        ColorType::Rgba => {
            bytes.chunks_exact(4).filter_map(|pixel| Some(on_white(pixel.first_chunk()?, *pixel.last()?))).collect()
        }
        ColorType::GrayscaleAlpha => {
            bytes.chunks_exact(2).filter_map(|pixel| Some(on_white(&[*pixel.first()?; 3], *pixel.last()?))).collect()
        }
        _ => return None,
    };
    Some(Pixels { width: frame.width as usize, colors }).filter(|image| image.width > 0 && !image.colors.is_empty())
}

/// A colour composited on white, the background of charts.
fn on_white(color: &[u8; 3], alpha: u8) -> [u8; 3] {
    color.map(|part| 255 - ((255 - u16::from(part)) * u16::from(alpha) / 255) as u8)
}

impl Pixels {
    /// Scales it down to at most this width, by averages over squares of pixels.
    fn fit(self, most_wide: usize) -> Self {
        let factor = self.width.div_ceil(most_wide.max(1));
        if factor <= 1 {
            return self;
        }
        let width = self.width / factor;
        let rows: Vec<&[[u8; 3]]> = self.colors.chunks(self.width).collect();
        let average = |rows: &[&[[u8; 3]]], column: usize| {
            let square = || rows.iter().flat_map(|row| row.iter().skip(column * factor).take(factor));
            [0, 1, 2].map(|part| {
                let sum: usize = square().filter_map(|color| color.get(part)).map(|part| usize::from(*part)).sum();
                (sum / square().count().max(1)) as u8
            })
        };
        let colors = rows.chunks(factor).flat_map(|rows| (0..width).map(move |column| average(rows, column))).collect();
        Self { width, colors }
    }
}

/// The colours of an image, and each pixel's index among them: all colours if they are few, as in a chart, otherwise the nearest of a
/// palette.
fn with_few_colors(colors: &[[u8; 3]]) -> (Vec<[u8; 3]>, Vec<u8>) {
    let (mut palette, mut known) = (Vec::new(), HashMap::new());
    let exact: Option<Vec<u8>> = colors
        .iter()
        .map(|color| {
            let number = *known.entry(*color).or_insert_with(|| {
                palette.push(*color);
                palette.len() - 1
            });
            u8::try_from(number).ok()
        })
        .collect();
    if let Some(exact) = exact {
        return (palette, exact);
    }
    let opaque: Vec<u8> = colors.iter().flat_map(|[red, green, blue]| [*red, *green, *blue, 255]).collect();
    let network = NeuQuant::new(SAMPLE, MAX_COLORS, &opaque);
    let palette = network.color_map_rgb().chunks_exact(3).filter_map(|color| color.first_chunk().copied()).collect();
    let index = |[red, green, blue]: &[u8; 3]| network.index_of(&[*red, *green, *blue, 255]) as u8;
    (palette, colors.iter().map(index).collect())
}

/// Writes up to six rows: for each colour in them a line of bytes, with a bit for each row.
fn write_band(band: &[u8], width: usize, colors: usize, out: &mut String) {
    let mut lines: Vec<Option<Vec<u8>>> = vec![None; colors];
    for (row, indexes) in band.chunks(width).enumerate() {
        for (column, index) in indexes.iter().enumerate() {
            if let Some(line) = lines.get_mut(usize::from(*index))
                && let Some(byte) = line.get_or_insert_with(|| vec![EMPTY; width]).get_mut(column)
            {
                *byte += 1 << row;
            }
        }
    }
    for (number, line) in lines.iter().enumerate().filter_map(|(number, line)| Some((number, line.as_ref()?))) {
        let _ = write!(out, "#{number}");
        for run in line.chunk_by(|one, next| one == next) {
            let byte = char::from(run.first().copied().unwrap_or(EMPTY));
            let _ = match run.len() {
                length @ ..=3 => write!(out, "{}", String::from(byte).repeat(length)),
                length => write!(out, "!{length}{byte}"),
            };
        }
        // Back to the beginning of the band.
        out.push('$');
    }
    out.push('-');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG of this width, of bytes of red, green, blue and alpha.
    fn png(width: u32, pixels: &[[u8; 4]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, pixels.len() as u32 / width);
        encoder.set_color(ColorType::Rgba);
        encoder.write_header().unwrap().write_image_data(pixels.as_flattened()).unwrap();
        out
    }

    #[test]
    fn rows_become_bits_and_runs() {
        let (red, clear) = ([255, 0, 0, 255], [0, 0, 0, 0]);
        // Seven rows: red, then white for six.
        let pixels: Vec<[u8; 4]> = [red; 5].into_iter().chain([clear; 30]).collect();
        assert_eq!(
            sixel(&png(5, &pixels), 100).unwrap(),
            "\u{1b}P0;1q\"1;1;5;7#0;2;100;0;0#1;2;100;100;100#0!5@$#1!5}$-#1!5@$-\u{1b}\\\n"
        );
    }

    #[test]
    fn a_wide_image_is_made_to_fit_and_a_photograph_has_few_colours() {
        let pixels: Vec<[u8; 4]> =
            (0..300 * 200u32).map(|n| [(n % 251) as u8, (n / 300) as u8, (n % 7 * 36) as u8, 255]).collect();
        let sequence = sixel(&png(300, &pixels), 100).unwrap();
        assert!(sequence.contains("\"1;1;100;67#0;2;") && !sequence.contains("#256"), "{}", sequence.len());
        assert_eq!(sequence.matches('-').count(), 67usize.div_ceil(BAND));
    }

    #[test]
    fn what_is_no_image_or_too_large_is_not_shown() {
        assert_eq!(sixel(b"\x89PNG", 100), None);
        let mut large = png(1, &[[0; 4]]);
        large[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 1]);
        assert_eq!(sixel(&large, 100), None);
        assert!(sixel(&png(1, &[[0; 4]; MAX_ROWS]), 100).is_some());
        assert_eq!(sixel(&png(1, &[[0; 4]; MAX_ROWS + 1]), 100), None);
    }
}
