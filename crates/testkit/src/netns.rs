use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::{Error, Random, Result};

/// A network namespace that one veth pair joins to the host, for a partition as real networks have them: packets
/// vanish and no reset comes back. Dropping it deletes both ends.
#[derive(Debug)]
pub struct Netns {
    name: String,
    device: String,
    host: Ipv4Addr,
    inside: Ipv4Addr,
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output().map_err(Error::io("running ip"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Setup(format!("ip {}: {}", args.join(" "), said.trim())))
}

impl Netns {
    /// Makes one, or returns `None` and prints why where this machine does not allow it (root and `ip` are needed).
    pub fn try_new() -> Option<Self> {
        match Self::new() {
            Ok(netns) => Some(netns),
            Err(e) => {
                println!("skipped: no network namespace can be made here: {e}");
                None
            }
        }
    }

    fn new() -> Result<Self> {
        let mut random = Random::unseeded();
        let id = random.below(1 << 24);
        let [_, _, a, b, ..] = random.next_u64().to_be_bytes();
        // A /30 of the range that RFC 2544 keeps for tests of networks: nobody's real addresses.
        let base = u32::from(Ipv4Addr::new(198, 18 + (a & 1), b, 0)) + 4 * u32::try_from(random.below(60)).unwrap_or(0);
        let (host, inside) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let netns = Self { name: format!("semel{id:06x}"), device: format!("sml{id:06x}"), host, inside };
        ip(&["netns", "add", &netns.name])?;
        let peer = format!("{}p", netns.device);
        ip(&["link", "add", &netns.device, "type", "veth", "peer", "name", &peer, "netns", &netns.name])?;
        ip(&["addr", "add", &format!("{host}/30"), "dev", &netns.device])?;
        ip(&["link", "set", &netns.device, "up"])?;
        let inner = |args: &[&str]| ip(&[&["-n", netns.name.as_str()], args].concat());
        inner(&["addr", "add", &format!("{inside}/30"), "dev", &peer])?;
        inner(&["link", "set", &peer, "up"])?;
        inner(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host's address, to which programs inside connect.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// The address inside.
    pub fn inside(&self) -> Ipv4Addr {
        self.inside
    }

    /// Packets vanish from now on, both ways; connections stay as they are at both ends.
    ///
    /// Each side sends to a hardware address that nobody has: no device goes down and no sender gets an error, as
    /// with a link that is cut somewhere between two machines.
    pub fn cut(&self) -> Result<()> {
        self.neighbour(&["replace"], &["lladdr", "02:00:00:00:00:01", "nud", "permanent"])
    }

    /// The end of the partition.
    pub fn heal(&self) -> Result<()> {
        self.neighbour(&["del"], &[])
    }

    fn neighbour(&self, verb: &[&str], what: &[&str]) -> Result<()> {
        let (host, inside, peer) = (self.host.to_string(), self.inside.to_string(), format!("{}p", self.device));
        ip(&[&["neigh"], verb, &[&inside, "dev", &self.device], what].concat())?;
        ip(&[&["-n", &self.name, "neigh"], verb, &[&host, "dev", &peer], what].concat())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The pair goes with either end, the namespace when its last process has ended.
        let _ = ip(&["link", "del", &self.device]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}
