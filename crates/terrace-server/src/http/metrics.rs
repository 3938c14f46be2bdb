//! `/metrics`: the figures of engine and service, in the OpenMetrics text format of Prometheus.

mod figures;

use super::{App, engine::Calls as _, refusal::Refusal};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use figures::Figures;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::sync::Arc;

/// Counts answers by route and status.
#[derive(Debug, Default)]
pub struct Requests(Family<RequestLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

impl Requests {
    /// Counts an answer. Routes are patterns, so their number is bounded.
    pub fn count(&self, route: String, status: StatusCode) {
        self.0
            .get_or_create(&RequestLabels {
                route,
                status: status.as_u16(),
            })
            .inc();
    }
}

/// `/metrics`
pub async fn text(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let stats = app.probes.call(|store| Ok::<_, Refusal>(store.stats())).await?;
    let mut registry = Registry::default();
    registry.register("terrace_http_requests", "Requests answered", app.requests.0.clone());
    if let Some(register) = &app.beside.register {
        register(&mut registry);
    }
    registry.register_collector(Box::new(Figures(stats)));
    let mut body = String::new();
    text::encode(&mut body, &registry).map_err(|_| Refusal::internal("the metrics could not be written"))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok((
        [
            (header::CONTENT_TYPE, content_type),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body,
    )
        .into_response())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use terrace::{OperationStats, Stats};

    #[test]
    fn figures_become_openmetrics_text() {
        let operation = OperationStats {
            name: "get",
            count: 6,
            errors: 1,
            total_ns: 3_000_000_000,
            buckets: vec![(1_000, 4), (1_000_000_000, 2), (u64::MAX, 1)],
        };
        let mut stats = Stats {
            operations: vec![operation],
            ..Stats::default()
        };
        stats.block.objects = 7;
        stats.written.flash_padding_bytes = 9;
        stats.written.compaction_bytes = 11;
        stats.expire.dropped_expired = 13;
        stats.ram.frames_bytes = 17;
        stats.damage = vec!["a block is gone".to_owned(), "another, too".to_owned()];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Figures(stats)));
        let mut body = String::new();
        text::encode(&mut body, &registry).unwrap();
        for line in [
            "# TYPE terrace_objects gauge",
            "terrace_objects{home=\"block\"} 7",
            "terrace_written_bytes_total{tier=\"flash\",cause=\"padding\"} 9",
            "terrace_written_bytes_total{tier=\"flash\",cause=\"compaction\"} 11",
            "terrace_dropped_objects_total{cause=\"expired\"} 13",
            "terrace_ram_bytes{part=\"frames\"} 17",
            "terrace_operations_total{operation=\"get\",outcome=\"error\"} 1",
            "terrace_operation_seconds_bucket{le=\"0.000001\",operation=\"get\"} 4",
            "terrace_operation_seconds_bucket{le=\"1.0\",operation=\"get\"} 6",
            "terrace_operation_seconds_bucket{le=\"+Inf\",operation=\"get\"} 7",
            "terrace_operation_seconds_count{operation=\"get\"} 7",
            "terrace_operation_seconds_sum{operation=\"get\"} 3.0",
            "terrace_damage_findings 2",
            "# EOF",
        ] {
            assert!(body.lines().any(|text| text == line), "{line} is not in\n{body}");
        }
    }
}
