//! `/metrics` and `/health` of a running job, on one port for all its processes.
use crate::metrics::merge;
use crate::options::Settings;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_engine::failure::Failure;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tracing::{info, warn};

/// What the page shows.
#[derive(Clone)]
pub(super) struct Page {
    own: Option<PrometheusHandle>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<usize, String>,
    running: bool,
}

impl Page {
    pub fn new(own: Option<PrometheusHandle>) -> Page {
        Page { own, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics of a worker process.
    pub fn worker(&self, index: usize, text: String) {
        self.state().workers.insert(index, text);
    }

    /// Whether a generation runs now.
    pub fn running(&self, running: bool) {
        self.state().running = running;
    }

    fn metrics(&self) -> String {
        let own = self.own.as_ref().map(PrometheusHandle::render).unwrap_or_default();
        let state = self.state();
        merge(&own, state.workers.iter().map(|(index, text)| (*index, text.as_str())))
    }

    /// Serves the page until the process ends.
    pub async fn serve(self, settings: &Settings) -> Result<(), Failure> {
        if !settings.flag("metrics.enabled") {
            return Ok(());
        }
        let (address, port) = (settings.text("metrics.bind-address").unwrap_or_default(), settings.number("metrics.port") as u16);
        let ip: IpAddr =
            address.parse().map_err(|_| Failure::Fatal(format!("metrics.bind-address = {address:?}: an IP address is needed")))?;
        let listener = TcpListener::bind((ip, port))
            .await
            .map_err(|e| Failure::Fatal(format!("metrics.port = {port} at {ip}: {e}; choose another one, or 0 for a free one")))?;
        if let Ok(at) = listener.local_addr() {
            info!("metrics at http://{at}/metrics");
        }
        let health = self.clone();
        let router = Router::new()
            .route("/metrics", get(move || async move { ([("content-type", "text/plain; version=0.0.4")], self.metrics()) }))
            .route(
                "/health",
                get(move || async move {
                    if health.state().running { (StatusCode::OK, "running\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "starting\n") }
                }),
            );
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                warn!(%error, "metrics are not served any more");
            }
        });
        Ok(())
    }
}
