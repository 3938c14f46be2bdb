//! The service's counters, for `/metrics` on the page's address.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// A row per figure: field, type, initial value if not empty, name, and help text, which documents
/// it.
macro_rules! figures {
    (@first) => { Default::default() };
    (@first $first:expr) => { $first };
    ($($visibility:vis $field:ident: $kind:ty $(= $first:expr)? => $name:literal $help:literal;)*) => {
        /// The service's figures. Clones count together.
        #[derive(Debug, Clone)]
        pub struct Figures {
            $(#[doc = $help] $visibility $field: $kind,)*
        }

        impl Default for Figures {
            fn default() -> Self {
                Self { $($field: figures!(@first $($first)?),)* }
            }
        }

        impl Figures {
            /// Adds the counters to the registry.
            pub fn register(&self, registry: &mut Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
            }
        }
    };
}

figures! {
    requests: Family<RequestLabels, Counter> => "terrace_s3_requests" "S3 requests answered";
    seconds: Family<OperationLabels, Histogram, fn() -> Histogram> = Family::new_with_constructor(histogram)
        => "terrace_s3_request_seconds" "Time until the answers to S3 requests began";
    received: Counter => "terrace_s3_received_bytes" "Bytes of the bodies of S3 requests";
    sent: Counter => "terrace_s3_sent_bytes" "Bytes of the bodies of answers to S3 requests";
    pub at_once: Counter => "terrace_s3_at_once" "S3 requests answered from RAM at once";
    pub in_flight: Gauge => "terrace_s3_in_flight" "S3 requests whose answers are not through yet";
    pub limited: Counter => "terrace_s3_limited" "S3 requests refused because their sender sends too many";
    pub lines_lost: Counter => "terrace_s3_access_log_lines_lost" "Lines the access log could not take in time";
    pub log_lines_lost: Counter
        => "terrace_s3_bucket_log_lines_lost" "Lines of the logs of buckets that could not be gathered or written";
    pub events_delivered: Counter => "terrace_s3_events_delivered" "Events of buckets that targets took";
    pub events_refused: Counter => "terrace_s3_events_refused" "Events that targets did not take, each time";
    pub events_lost: Counter => "terrace_s3_events_lost" "Events that were given up, or had no room";
    pub events_waiting: Gauge => "terrace_s3_events_waiting" "Events that wait for their targets";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: String,
}

fn histogram() -> Histogram {
    // 0.25 ms to 65 s.
    Histogram::new(exponential_buckets(0.000_25, 4.0, 10))
}

impl Figures {
    /// Counts a finished answer: S3's operation, status, seconds until it began, and bytes of the
    /// bodies.
    pub fn count(&self, operation: &str, status: u16, seconds: f64, received: u64, sent: u64) {
        let operation = operation.to_owned();
        self.requests
            .get_or_create(&RequestLabels {
                operation: operation.clone(),
                status,
            })
            .inc();
        self.seconds
            .get_or_create(&OperationLabels { operation })
            .observe(seconds);
        self.received.inc_by(received);
        self.sent.inc_by(sent);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prometheus_client::encoding::text;

    #[test]
    fn what_is_counted_is_shown() {
        let figures = Figures::default();
        figures.count("GetObject", 200, 0.1, 0, 50);
        figures.count("GetObject", 404, 0.1, 0, 5);
        figures.count("PutObject", 200, 2.0, 70, 0);
        figures.in_flight.inc();
        let mut registry = Registry::default();
        figures.register(&mut registry);
        let mut body = String::new();
        text::encode(&mut body, &registry).unwrap();
        for line in [
            "terrace_s3_requests_total{operation=\"GetObject\",status=\"404\"} 1",
            "terrace_s3_request_seconds_count{operation=\"GetObject\"} 2",
            "terrace_s3_received_bytes_total 70",
            "terrace_s3_sent_bytes_total 55",
            "terrace_s3_in_flight 1",
        ] {
            assert!(body.lines().any(|text| text == line), "{line} is not in\n{body}");
        }
    }
}
