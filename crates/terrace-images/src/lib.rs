//! Imports images: every image file under a directory becomes one group in the store.
//!
//! For each file, `walk` finds it, `source` reads it and recognises its format by content, `decode`
//! decodes it, `resize` makes the resolutions, `encode` encodes them, `group` builds one batch and
//! `pipeline` commits it, many files at a time. `catalogue` defines keys and attributes.
//!
//! # What is stored
//!
//! An image's ID is the first 16 bytes of the BLAKE3 hash of its file, in lowercase hex. One group
//! holds:
//!
//! | key | value | attributes |
//! |---|---|---|
//! | `images/ID/original` | the file as it is | all of the image's, `content-type`, `etag` |
//! | `images/ID/RESOLUTION` | the image fitted into the resolution's box, encoded | `content-type`, `etag`, `width`, `height`, `content-hash` |
//! | `catalogue/ID` | nothing | all of the image's, and width, height, bytes and type of each resolution |
//!
//! A page of N images is one scan of N entries under `catalogue/`: attributes are in the ordered
//! index, so listing reads no values. The order is that of the IDs, arbitrary but stable; paging
//! continues after the last ID.
//!
//! # Invariants
//!
//! - `catalogue/ID` exists if and only if the whole group does: they are committed together. A
//!   second import of the same content finds it and does nothing.
//! - No memory is allocated for pixels before the header's dimensions are checked against the pixel
//!   limit.
//! - Images in flight are bounded by a budget of memory, whatever the number of threads (see
//!   `gate`).
//!
//! # On failure
//!
//! A file that cannot be read or decoded is reported by name with the reason, and the import
//! continues. Decoding is strict: a file with incomplete pixel data fails instead of giving a
//! half-grey image. An error of the store stops the import; what was committed stays, and the next
//! import continues from there.

mod catalogue;
mod decode;
mod encode;
mod exif;
mod gate;
mod group;
mod options;
mod pipeline;
mod progress;
mod report;
mod resize;
mod source;
#[cfg(test)]
mod tests;
mod walk;

pub use catalogue::{
    CATALOGUE_PREFIX, CatalogueEntry, IMAGES_PREFIX, ImageId, ORIGINAL, StoredResolution, attribute, catalogue_key,
    image_key,
};
pub use options::{ImportOptions, OutputFormat, Resolution};
pub use pipeline::{GroupSink, import};
pub use progress::{Progress, TerminalBar};
pub use report::{FailedFile, ImportReport, Outcome};
pub use source::Format;
