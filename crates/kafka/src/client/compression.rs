//! Codecs of record batches.
use super::error::{ClientError, Result};
use std::io::{Read, Write};
use std::str::FromStr;

/// Codec of a record batch (`compression.type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As it is.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy in xerial's framing, as Java writes it.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl FromStr for Compression {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "none" | "" => Compression::None,
            "gzip" => Compression::Gzip,
            "snappy" => Compression::Snappy,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd,
            other => {
                return Err(ClientError::config("compression.type", format!("'{other}' is not one of none, gzip, snappy, lz4, zstd")));
            }
        })
    }
}

/// Magic bytes, version and compatible version of xerial's snappy stream.
const XERIAL: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
/// Bytes per block, xerial's default.
const XERIAL_BLOCK: usize = 32 << 10;

impl Compression {
    /// Number in a batch's attributes.
    pub(crate) fn bits(self) -> i16 {
        self as i16
    }

    /// Codec of a batch's attributes.
    pub(crate) fn from_bits(attributes: i16) -> Option<Self> {
        match attributes & 7 {
            0 => Some(Compression::None),
            1 => Some(Compression::Gzip),
            2 => Some(Compression::Snappy),
            3 => Some(Compression::Lz4),
            4 => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Appends `plain`, compressed, to `out`.
    pub(crate) fn compress(self, plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        match self {
            Compression::None => out.extend_from_slice(plain),
            Compression::Gzip => {
                let mut w = flate2::write::GzEncoder::new(out, flate2::Compression::default());
                w.write_all(plain)?;
                w.finish()?;
            }
            Compression::Snappy => {
                out.extend_from_slice(&XERIAL);
                let mut encoder = snap::raw::Encoder::new();
                let mut block = vec![0; snap::raw::max_compress_len(XERIAL_BLOCK)];
                for chunk in plain.chunks(XERIAL_BLOCK) {
                    let n = encoder.compress(chunk, &mut block).map_err(std::io::Error::other)?;
                    out.extend_from_slice(&(n as u32).to_be_bytes());
                    out.extend_from_slice(&block[..n]);
                }
            }
            Compression::Lz4 => {
                use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
                // Java's reader wants independent blocks.
                let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
                let mut w = FrameEncoder::with_frame_info(info, out);
                w.write_all(plain)?;
                w.finish().map_err(std::io::Error::other)?;
            }
            Compression::Zstd => {
                let mut w = zstd::stream::write::Encoder::new(out, 0)?;
                w.write_all(plain)?;
                w.finish()?;
            }
        }
        Ok(())
    }

    /// Appends `packed`, decompressed, to `out`: at most `limit` bytes, more is an error.
    pub(crate) fn decompress(self, packed: &[u8], out: &mut Vec<u8>, limit: usize) -> std::result::Result<(), String> {
        match self {
            Compression::None => {
                out.extend_from_slice(packed);
                Ok(())
            }
            Compression::Gzip => read_all(flate2::read::MultiGzDecoder::new(packed), out, limit),
            Compression::Snappy => unsnap(packed, out, limit),
            Compression::Lz4 => read_all(lz4_flex::frame::FrameDecoder::new(packed), out, limit),
            Compression::Zstd => {
                let reader = zstd::stream::read::Decoder::with_buffer(packed).map_err(|e| e.to_string())?;
                read_all(reader, out, limit)
            }
        }
    }
}

fn read_all(reader: impl Read, out: &mut Vec<u8>, limit: usize) -> std::result::Result<(), String> {
    let n = reader.take(limit as u64 + 1).read_to_end(out).map_err(|e| e.to_string())?;
    if n > limit { Err(format!("more than {limit} bytes after decompression")) } else { Ok(()) }
}

fn unsnap(packed: &[u8], out: &mut Vec<u8>, limit: usize) -> std::result::Result<(), String> {
    let Some(mut rest) = packed.strip_prefix(&XERIAL[..8]).map(|r| r.get(8..).unwrap_or_default()) else {
        return unsnap_block(packed, out, limit);
    };
    let start = out.len();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or("snappy block without length")?;
        let length = u32::from_be_bytes(*length) as usize;
        let block = tail.get(..length).ok_or("snappy block is cut")?;
        rest = &tail[length..];
        unsnap_block(block, out, limit.saturating_sub(out.len() - start))?;
    }
    Ok(())
}

fn unsnap_block(packed: &[u8], out: &mut Vec<u8>, limit: usize) -> std::result::Result<(), String> {
    let n = snap::raw::decompress_len(packed).map_err(|e| e.to_string())?;
    // No element of the format makes more than 64 bytes out of two.
    if n > limit || n > packed.len().saturating_mul(32) {
        return Err(format!("snappy block claims {n} bytes"));
    }
    let start = out.len();
    out.resize(start + n, 0);
    let m = snap::raw::Decoder::new().decompress(packed, &mut out[start..]).map_err(|e| e.to_string())?;
    out.truncate(start + m);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ALL: [Compression; 5] = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    #[test]
    fn every_codec_gives_back_what_went_in() {
        for len in [0, 1, 100, 32 << 10, 200_000] {
            let plain: Vec<u8> = (0..len as u64).map(|i| (i * i % 251) as u8).collect();
            for codec in ALL {
                let (mut packed, mut back) = (Vec::new(), b"before".to_vec());
                codec.compress(&plain, &mut packed).unwrap();
                codec.decompress(&packed, &mut back, 1 << 20).unwrap();
                assert_eq!(&back[..6], b"before");
                assert!(back[6..] == plain, "{codec:?} {len}");
            }
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let plain = vec![0; 4 << 20];
        for codec in &ALL[1..] {
            let (mut packed, mut back) = (Vec::new(), Vec::new());
            codec.compress(&plain, &mut packed).unwrap();
            assert!(codec.decompress(&packed, &mut back, 1 << 20).is_err(), "{codec:?}");
            assert!(back.len() <= (1 << 20) + 1, "{codec:?}");
        }
    }
}
