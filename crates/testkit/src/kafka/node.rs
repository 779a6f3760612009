use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::tail;
use crate::faults::signal;
use crate::java::{Installation, java};
use crate::ports::PortLease;
use crate::{Error, Result, guardian};

/// One broker process and what stays when it is killed.
#[derive(Debug)]
pub(super) struct Node {
    id: i32,
    home: PathBuf,
    heap_mb: usize,
    /// What clients are told.
    pub(super) advertised_port: u16,
    /// Client, internal, controller.
    ports: Vec<PortLease>,
    child: Option<Child>,
}

impl Node {
    pub(super) fn new(id: i32, home: PathBuf, heap_mb: usize, advertised_port: u16, ports: Vec<PortLease>) -> Self {
        Self { id, home, heap_mb, advertised_port, ports, child: None }
    }

    pub(super) fn internal_port(&self) -> u16 {
        self.ports.get(1).map_or(0, PortLease::port)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.home.join("broker.log")
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn start(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Err(Error::Setup(format!("Kafka broker {} runs already", self.id)));
        }
        let log = self.log();
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(Error::io(format!("opening {}", log.display())))?;
        let copy = file.try_clone().map_err(Error::io("sharing a log file"))?;
        let lib = Installation::find()?.lib;
        let mut command = java();
        command
            .arg(format!("-Xmx{}m", self.heap_mb))
            // Tests start many brokers: a quick start is worth more than a high rate.
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"])
            .args(["-cp", &format!("{}/*", lib.display()), "kafka.Kafka"])
            .arg(self.home.join("server.properties"))
            .current_dir(&self.home)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy);
        self.child = Some(guardian::spawn(&mut command)?);
        Ok(())
    }

    /// An error if the process has ended by itself.
    pub(super) fn check_running(&mut self) -> Result<()> {
        let what = format!("Kafka broker {}", self.id);
        let log = self.log();
        let status = match self.child.as_mut() {
            None => return Err(Error::Setup(format!("{what} was not started"))),
            Some(child) => child.try_wait().map_err(Error::io(format!("waiting for {what}")))?,
        };
        match status {
            None => Ok(()),
            Some(status) => {
                self.forget();
                Err(Error::Ended { what, status: status.to_string(), tail: tail(&log, 20), log })
            }
        }
    }

    fn forget(&mut self) {
        if let Some(child) = self.child.take() {
            guardian::ended(child.id());
        }
    }

    fn send(&mut self, what: Signal) -> Result<()> {
        match self.pid() {
            Some(pid) => signal(pid, what),
            None => Err(Error::Setup(format!("Kafka broker {} does not run", self.id))),
        }
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(child) = self.child.as_mut() {
            child.kill().map_err(Error::io("killing a Kafka broker"))?;
            child.wait().map_err(Error::io("waiting for a killed Kafka broker"))?;
        }
        self.forget();
        Ok(())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        self.send(Signal::TERM)?;
        let limit = Duration::from_secs(60);
        let deadline = Instant::now() + limit;
        while let Some(child) = self.child.as_mut() {
            if child.try_wait().map_err(Error::io("waiting for a Kafka broker"))?.is_some() {
                self.forget();
            } else if Instant::now() > deadline {
                return Err(Error::Deadline {
                    what: format!("the end of Kafka broker {}", self.id),
                    after: limit,
                    hint: tail(&self.log(), 5),
                });
            } else {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        self.send(Signal::STOP)
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        self.send(Signal::CONT)
    }
}
