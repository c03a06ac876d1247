//! Job token: what opens a session for one job and for nothing else.
//!
//! ```text
//!   0  1        9         17                       49
//!   |1 | job u64 | expiry  | HMAC-SHA256             |      little-endian; expiry in seconds since 1970
//! ```
//!
//! The MAC is made with the cluster secret over a fixed text, then the first 17 bytes. The text keeps it apart from anything
//! else that is ever signed with that secret.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{ErrorKind, Result, ShuffleError};
use crate::ids::JobId;
use crate::limits::{MAX_SECRET_BYTES, MAX_TOKEN_BYTES, MIN_SECRET_BYTES};

/// Length of an encoded token, in bytes.
pub const TOKEN_BYTES: usize = 1 + 8 + 8 + MAC_BYTES;

const MAC_BYTES: usize = 32;
const SIGNED_BYTES: usize = TOKEN_BYTES - MAC_BYTES;
const TOKEN_VERSION: u8 = 1;
const PURPOSE: &[u8] = b"shuffle job token\0";

const _: () = assert!(TOKEN_BYTES <= MAX_TOKEN_BYTES as usize);

/// The cluster secret. It never shows itself.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Wraps the secret.
    ///
    /// # Errors
    /// `InvalidRequest` if it is shorter than [`MIN_SECRET_BYTES`] or longer than [`MAX_SECRET_BYTES`].
    pub fn new(secret: impl Into<Vec<u8>>) -> Result<Self> {
        let secret = secret.into();
        if !(MIN_SECRET_BYTES as usize..=MAX_SECRET_BYTES as usize).contains(&secret.len()) {
            let message = format!(
                "a secret of {} bytes, not of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}",
                secret.len()
            );
            return Err(ShuffleError::new(ErrorKind::InvalidRequest, message));
        }
        Ok(Self(secret.into()))
    }

    fn mac(&self, signed: &[u8; SIGNED_BYTES]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("invariant: HMAC takes a key of any length");
        mac.update(PURPOSE);
        mac.update(signed);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A token as it was minted or as it came; only [`JobToken::verify`] says whether it is worth anything.
#[derive(Clone, PartialEq, Eq)]
pub struct JobToken {
    /// The job that it opens.
    pub job: JobId,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
    mac: [u8; MAC_BYTES],
}

impl JobToken {
    /// Makes a token.
    pub fn mint(secret: &Secret, job: JobId, expires_unix_seconds: u64) -> Self {
        let mac = secret
            .mac(&signed(job, expires_unix_seconds))
            .finalize()
            .into_bytes()
            .into();
        Self {
            job,
            expires_unix_seconds,
            mac,
        }
    }

    /// The token as bytes.
    pub fn to_bytes(&self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..SIGNED_BYTES].copy_from_slice(&signed(self.job, self.expires_unix_seconds));
        bytes[SIGNED_BYTES..].copy_from_slice(&self.mac);
        bytes
    }

    /// Reads a token.
    ///
    /// # Errors
    /// `Denied` if the bytes are no token.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let malformed = || denied("the token is malformed");
        let bytes: &[u8; TOKEN_BYTES] = bytes.try_into().map_err(|_| malformed())?;
        let (version, rest) = bytes.split_first().ok_or_else(malformed)?;
        if *version != TOKEN_VERSION {
            return Err(malformed());
        }
        let (job, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (expires, mac) = rest.split_first_chunk().ok_or_else(malformed)?;
        Ok(Self {
            job: JobId::new(u64::from_le_bytes(*job)),
            expires_unix_seconds: u64::from_le_bytes(*expires),
            mac: mac.try_into().map_err(|_| malformed())?,
        })
    }

    /// Checks that the token was made with this secret, is for this job and has not ended. The MAC is compared in constant
    /// time and first, so a forged token learns nothing of the rest.
    ///
    /// # Errors
    /// `Denied` with the reason.
    pub fn verify(&self, secret: &Secret, job: JobId, now_unix_seconds: u64) -> Result<()> {
        secret
            .mac(&signed(self.job, self.expires_unix_seconds))
            .verify_slice(&self.mac)
            .map_err(|_| denied("the token was not made with this cluster's secret").job(job))?;
        if self.job != job {
            return Err(denied("the token is for another job").job(job));
        }
        if self.expires_unix_seconds <= now_unix_seconds {
            return Err(denied("the token has expired").job(job));
        }
        Ok(())
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobToken")
            .field("job", &self.job)
            .field("expires_unix_seconds", &self.expires_unix_seconds)
            .finish_non_exhaustive()
    }
}

fn signed(job: JobId, expires_unix_seconds: u64) -> [u8; SIGNED_BYTES] {
    let mut bytes = [TOKEN_VERSION; SIGNED_BYTES];
    bytes[1..9].copy_from_slice(&job.value().to_le_bytes());
    bytes[9..].copy_from_slice(&expires_unix_seconds.to_le_bytes());
    bytes
}

fn denied(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::Denied, message)
}
