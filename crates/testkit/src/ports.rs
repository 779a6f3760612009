use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use crate::{Error, Random, Result};

/// A port that no other test of this machine's user is given while the lease lives.
///
/// A server that is killed and started again must find its port free. Ports that the kernel gives out for outgoing
/// connections could be taken meanwhile, so these come from below that range, and a locked file keeps other test
/// processes away.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    _lock: File,
}

impl PortLease {
    /// The number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Reserves a free TCP port on 127.0.0.1.
pub fn reserve_port() -> Result<PortLease> {
    reserve_port_on(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Reserves a free TCP port on an address of this machine.
pub(crate) fn reserve_port_on(host: IpAddr) -> Result<PortLease> {
    let dir = std::env::temp_dir().join("semel-testkit-ports");
    std::fs::create_dir_all(&dir).map_err(Error::io(format!("making {}", dir.display())))?;
    let mut random = Random::unseeded();
    for _ in 0..500 {
        let port = 12_000 + u16::try_from(random.below(12_000)).unwrap_or(0);
        let path = dir.join(port.to_string());
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io(format!("opening {}", path.display())))?;
        if lock.try_lock().is_err() || TcpListener::bind(SocketAddr::new(host, port)).is_err() {
            continue;
        }
        return Ok(PortLease { port, _lock: lock });
    }
    Err(Error::Setup(format!("no free port from 12000 to 23999 on {host}")))
}
