//! Uploads in parts, of tests of any kind.

use crate::{
    common::Answer,
    elements,
    sign::{Client, Mode},
};

/// An upload that has begun.
pub struct Upload {
    /// The object.
    target: String,
    id: String,
}

impl Upload {
    /// Begins one.
    pub fn begin(client: &Client, target: &str, headers: &[(&str, &str)]) -> Self {
        let begun = client.send("POST", &format!("{target}?uploads"), headers, b"");
        Self::of(target, &begun.status(200))
    }

    /// The one that an answer names.
    pub fn of(target: &str, begun: &Answer) -> Self {
        Self {
            target: target.to_owned(),
            id: elements(begun, "UploadId").remove(0),
        }
    }

    /// Where its parts are listed, and where it is completed or aborted.
    pub fn target(&self) -> String {
        format!("{}?uploadId={}", self.target, self.id)
    }

    /// Where a part is put.
    pub fn part(&self, number: usize) -> String {
        format!("{}?partNumber={number}&uploadId={}", self.target, self.id)
    }

    /// Puts a part, and returns its entity tag.
    pub fn put(&self, client: &Client, number: usize, body: &[u8], mode: Mode) -> String {
        let put = client.put(&self.part(number), body, mode).status(200);
        put.header("etag").unwrap().to_owned()
    }

    /// Completes it with the parts from 1 on.
    pub fn complete(&self, client: &Client, headers: &[(&str, &str)], tags: &[String]) -> Answer {
        let part = |(at, tag)| format!("<Part><PartNumber>{}</PartNumber><ETag>{tag}</ETag></Part>", at + 1);
        let parts: String = tags.iter().enumerate().map(part).collect();
        let list = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        client.send("POST", &self.target(), headers, list.as_bytes())
    }
}
