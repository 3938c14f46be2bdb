//! Listen addresses, with the same syntax on the command line, in variables and in the file. The
//! error for an invalid one describes the syntax in all three: the standard library's error does
//! not.

use serde::Deserialize;
use std::{net::SocketAddr, str::FromStr};

/// Where the page listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen(pub SocketAddr);

/// Where the S3 service listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum S3Listen {
    /// No listener.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse().map(Self);
        address.map_err(|_| format!("`{text}`: write an IP address with a port, like 127.0.0.1:7070"))
    }
}

impl FromStr for S3Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address = text.parse().map(Self::At);
        address.map_err(|_| format!("`{text}`: write an IP address with a port, like 127.0.0.1:7071, or off"))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for S3Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
