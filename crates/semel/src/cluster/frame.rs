//! Messages on a connection: 4 bytes of length (little endian), then JSON. Reading and writing have a deadline as a whole, so that
//! a peer that sends one byte now and then cannot hold anybody.
use serde::{Serialize, de::DeserializeOwned};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest message of a peer that has not proven anything yet.
pub const UNPROVEN_LIMIT: usize = 4 << 10;
/// The longest message: an assignment lists all state files.
pub const LIMIT: usize = 256 << 20;

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")) } else { Ok(left) }
}

struct Until<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.stream.write(buffer).map_err(timed_out)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "no answer in time"),
        _ => error,
    }
}

/// Writes bytes as one message.
pub fn write_bytes(stream: &TcpStream, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::new(ErrorKind::InvalidData, "message too long"))?;
    let mut whole = Vec::with_capacity(bytes.len() + 4);
    whole.extend(length.to_le_bytes());
    whole.extend(bytes);
    Until { stream, deadline }.write_all(&whole)
}

/// Writes a value as one message.
pub fn write<T: Serialize>(stream: &TcpStream, value: &T, deadline: Instant) -> io::Result<()> {
    write_bytes(stream, &serde_json::to_vec(value)?, deadline)
}

/// Reads the bytes of one message of at most `limit`.
pub fn read_bytes(stream: &TcpStream, limit: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut from = Until { stream, deadline };
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes; at most {limit} are taken here")));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads one message.
pub fn read<T: DeserializeOwned>(stream: &TcpStream, limit: usize, deadline: Instant) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_bytes(stream, limit, deadline)?)?)
}

/// No delay for small messages; a connection whose other end is unreachable breaks after `timeout`, whether something is being
/// sent (TCP_USER_TIMEOUT) or not (keepalive).
pub fn tune(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(timeout))?;
    let part = (timeout / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(part).with_interval(part).with_retries(3))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    #[test]
    fn a_message_too_long_for_a_stranger_is_refused() {
        let (a, b) = pair();
        let soon = Instant::now() + Duration::from_secs(5);
        write(&a, &"x".repeat(100), soon).unwrap();
        assert_eq!(read::<String>(&b, 200, soon).unwrap().len(), 100);
        write(&a, &"x".repeat(100), soon).unwrap();
        assert!(read::<String>(&b, 50, soon).unwrap_err().to_string().contains("at most 50"));
    }

    #[test]
    fn a_peer_that_drips_is_not_waited_for() {
        let (mut a, b) = pair();
        let writer = std::thread::spawn(move || {
            a.write_all(&8u32.to_le_bytes()).unwrap();
            for _ in 0..7 {
                _ = a.write_all(b"1");
                std::thread::sleep(Duration::from_millis(100));
            }
            a
        });
        let start = Instant::now();
        let error = read_bytes(&b, 100, start + Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_millis(600));
        drop(writer.join().unwrap());
    }

    #[test]
    fn sockets_are_tuned() {
        let (a, _b) = pair();
        tune(&a, Duration::from_secs(10)).unwrap();
        let socket = SockRef::from(&a);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(10)));
    }
}
