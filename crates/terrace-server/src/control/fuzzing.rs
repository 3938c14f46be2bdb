//! Lines of the control socket, for fuzz targets. No part of the interface.

use super::{Answer, REQUEST_BYTES_MAX, Request, server::request_line};
use std::io::{self, Read};

/// Bytes that come some at a time, and how many were taken.
struct Pieces<'b> {
    rest: &'b [u8],
    piece_bytes: usize,
    taken: u64,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.piece_bytes);
        let bytes = self.rest.read(&mut buffer[..most])?;
        self.taken += bytes as u64;
        Ok(bytes)
    }
}

/// What a client of the socket sends, and what a server answers: each is the same when it is
/// written and read once more.
pub fn control_line(sent: &[u8]) -> bool {
    let read = |piece_bytes| {
        let mut pieces = Pieces {
            rest: sent,
            piece_bytes,
            taken: 0,
        };
        let line = request_line(&mut pieces).ok();
        assert!(pieces.taken <= REQUEST_BYTES_MAX, "a request has a bound");
        line
    };
    let whole = read(usize::MAX);
    // A client that never ends the line is not read for ever.
    let mut endless = Pieces {
        rest: sent,
        piece_bytes: usize::MAX,
        taken: 0,
    }
    .chain(io::repeat(b' '));
    assert!(request_line(&mut endless).is_ok_and(|line| line.len() as u64 <= REQUEST_BYTES_MAX) || whole.is_none());
    assert!([1, 7].into_iter().all(|piece_bytes| read(piece_bytes) == whole));
    let Some(line) = whole else { return false };
    assert!(line.lines().count() <= 1, "one line");
    let request = serde_json::from_str::<Request>(&line).ok();
    if let Some(request) = &request {
        let again = serde_json::to_string(request).and_then(|text| serde_json::from_str::<Request>(&text));
        assert_eq!(again.ok().as_ref(), Some(request));
    }
    let answer = serde_json::from_str::<Answer>(&line).ok();
    if let Some(answer) = &answer {
        let again = serde_json::to_string(answer).and_then(|text| serde_json::from_str::<Answer>(&text));
        // Numbers with a fraction may lose their last digit.
        let has_fractions = matches!(answer, Answer::Stats(_) | Answer::BackedUp(_));
        assert!(again.is_ok_and(|again| has_fractions || again == *answer));
        assert!(!format!("{answer:?}").contains("secret:"), "no secret is logged");
    }
    request.is_some() || answer.is_some()
}
