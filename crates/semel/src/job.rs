//! A job: what a program hands to the command line.
use semel_engine::graph::Graph;
use std::collections::BTreeMap;
use std::fmt;

/// What is to be run. Built anew in every process of the job, so it must be the same each time: the plan's hash is compared.
pub struct Job {
    /// Its name; the option `pipeline.name` overrides it. Fixed for the life of its checkpoints.
    pub name: String,
    /// Sources, operators and sinks.
    pub graph: Graph,
    /// Options that the program sets; environment and command line override them.
    pub options: BTreeMap<String, String>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("plan", &self.graph.hash()).finish_non_exhaustive()
    }
}

impl Job {
    /// Without options.
    pub fn new(name: impl Into<String>, graph: Graph) -> Job {
        Job { name: name.into(), graph, options: BTreeMap::new() }
    }

    /// Sets an option, as the program's default.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        self.options.insert(name.into(), value.into());
        self
    }
}
