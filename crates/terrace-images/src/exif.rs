//! Reads the EXIF metadata that is kept: orientation, time of capture, camera.
//!
//! Invariant: the result is valid for any input: the orientation is 1 to 8, texts are short and
//! printable, a time is a valid one.
//!
//! Failure: a property with damaged, contradictory or hostile metadata is missing; the image never
//! fails because of it.

use super::source::Format;
use exif::{DateTime, Exif, In, Tag, Value};
use std::{fmt::Write, io::Cursor};

/// Longest text of a tag, in characters.
const TEXT_CHARACTERS_MAX: usize = 100;

/// EXIF properties of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CaptureFacts {
    /// Orientation, 1 to 8.
    pub(super) orientation: u8,
    /// Time of capture.
    pub(super) capture_time: Option<String>,
    /// Make and model of the camera.
    pub(super) camera: Option<String>,
}

impl Default for CaptureFacts {
    fn default() -> Self {
        Self {
            orientation: 1,
            capture_time: None,
            camera: None,
        }
    }
}

/// Reads the properties from a whole image file.
pub(super) fn capture_facts(bytes: &[u8], format: Format) -> CaptureFacts {
    if format == Format::Gif {
        return CaptureFacts::default();
    }
    // The input is not trusted: if the parser panics, the image is still valid.
    std::panic::catch_unwind(|| parse(bytes)).unwrap_or_default()
}

fn parse(bytes: &[u8]) -> CaptureFacts {
    let mut reader = exif::Reader::new();
    reader.continue_on_error(true);
    let parsed = reader.read_from_container(&mut Cursor::new(bytes));
    let Ok(exif) = parsed.or_else(|error| error.distill_partial_result(|_| ())) else {
        return CaptureFacts::default();
    };
    let orientation = exif
        .get_field(Tag::Orientation, In::PRIMARY)
        .and_then(|field| field.value.get_uint(0))
        .and_then(|value| u8::try_from(value).ok())
        .filter(|value| (1..=8).contains(value))
        .unwrap_or(1);
    CaptureFacts {
        orientation,
        capture_time: capture_time(&exif),
        camera: camera(&exif),
    }
}

fn capture_time(exif: &Exif) -> Option<String> {
    let [tag, offset_tag] = [
        [Tag::DateTimeOriginal, Tag::OffsetTimeOriginal],
        [Tag::DateTimeDigitized, Tag::OffsetTimeDigitized],
    ]
    .into_iter()
    .find(|[tag, _]| exif.get_field(*tag, In::PRIMARY).is_some())?;
    let mut time = DateTime::from_ascii(ascii(exif, tag)?).ok()?;
    if let Some(offset) = ascii(exif, offset_tag) {
        // An invalid offset is left out of the time.
        let _ = time.parse_offset(offset);
    }
    let exists = time.year > 0
        && (1..=12).contains(&time.month)
        && (1..=31).contains(&time.day)
        && time.hour < 24
        && time.minute < 60
        && time.second <= 60;
    if !exists {
        return None;
    }
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        time.year, time.month, time.day, time.hour, time.minute, time.second
    );
    if let Some(offset) = time.offset.filter(|offset| offset.abs() <= 18 * 60) {
        let sign = if offset < 0 { '-' } else { '+' };
        let minutes = offset.abs();
        let _ = write!(text, "{sign}{:02}:{:02}", minutes / 60, minutes % 60);
    }
    Some(text)
}

/// Make and model; only the model if it starts with the make ("Canon", "Canon EOS R6").
fn camera(exif: &Exif) -> Option<String> {
    let make = printable(ascii(exif, Tag::Make).unwrap_or_default());
    let model = printable(ascii(exif, Tag::Model).unwrap_or_default());
    let camera = if model.to_lowercase().starts_with(&make.to_lowercase()) {
        model
    } else {
        format!("{make} {model}")
    };
    let camera = camera.trim();
    (!camera.is_empty()).then(|| camera.to_owned())
}

fn ascii(exif: &Exif, tag: Tag) -> Option<&[u8]> {
    match &exif.get_field(tag, In::PRIMARY)?.value {
        Value::Ascii(texts) => texts.first().map(Vec::as_slice),
        _ => None,
    }
}

fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let kept = text.chars().filter(|character| !character.is_control());
    let kept: String = kept.take(TEXT_CHARACTERS_MAX).collect();
    kept.trim().to_owned()
}
