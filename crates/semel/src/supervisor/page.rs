//! `/metrics` and `/health` of a running job, on one port for all its processes, and `/` with links to them.
use crate::metrics::merge;
use crate::options::Settings;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Html;
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
    job: String,
    own: Option<PrometheusHandle>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<usize, String>,
    running: bool,
}

impl Page {
    /// Of the job of this name.
    pub fn new(job: String, own: Option<PrometheusHandle>) -> Page {
        Page { job, own, state: Arc::default() }
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

    fn health(&self) -> (StatusCode, &'static str) {
        if self.state().running { (StatusCode::OK, "running\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "starting\n") }
    }

    fn index(&self) -> Html<String> {
        let (job, state) = (escaped(&self.job), self.health().1.trim());
        Html(format!(
            "<!doctype html>\n<title>{job}: {state}</title>\n<h1>{job}</h1>\n<p>The job is {state}.</p>\n<ul>\n\
             <li><a href=\"metrics\">metrics</a>: Prometheus text\n<li><a href=\"health\">health</a>: 200 while it runs, else 503\n</ul>\n"
        ))
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
        let (index, health) = (self.clone(), self.clone());
        let router = Router::new()
            .route("/", get(move || async move { index.index() }))
            .route("/metrics", get(move || async move { ([("content-type", "text/plain; version=0.0.4")], self.metrics()) }))
            .route("/health", get(move || async move { health.health() }));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                warn!(%error, "metrics are not served any more");
            }
        });
        Ok(())
    }
}

/// As text in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_names_the_job_and_its_state() {
        let page = Page::new("a<b>&c".into(), None);
        assert!(page.index().0.contains("<h1>a&lt;b&gt;&amp;c</h1>\n<p>The job is starting."));
        page.running(true);
        assert!(page.index().0.contains("The job is running."));
    }
}
