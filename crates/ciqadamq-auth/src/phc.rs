//! Argon2 password hashes as PHC strings. Pure: bytes in, verdict out.

use argon2::password_hash::{PasswordHash as Phc, PasswordHasher, Salt, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use ciqadamq_core::PasswordHash;
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Highest memory a stored hash may ask for, in KiB: 256 MiB.
const M_COST_MAX: u32 = 256 * 1024;
/// Highest number of passes a stored hash may ask for.
const T_COST_MAX: u32 = 32;
/// Highest number of lanes a stored hash may ask for.
const P_COST_MAX: u32 = 16;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Argon2id cost parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashParams {
    /// memory in KiB
    pub m_cost: u32,
    /// passes
    pub t_cost: u32,
    /// lanes
    pub p_cost: u32,
}

impl Default for HashParams {
    fn default() -> Self {
        Self { m_cost: 9216, t_cost: 2, p_cost: 1 }
    }
}

/// A hash that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PhcError {
    /// not a PHC string
    #[error("not a PHC string")]
    Malformed,
    /// an algorithm other than argon2
    #[error("algorithm `{0}` is not supported; argon2id is")]
    Algorithm(String),
    /// parameters out of bounds
    #[error("hash parameters out of bounds: {0}")]
    Bounds(String),
    /// no memory to hash with
    #[error("hashing failed")]
    Hashing,
}

/// Scratch memory for hashing, kept by each thread of the pool: fresh pages for every login cost more than they save.
#[derive(Default)]
pub struct Scratch(Vec<Block>);

impl Scratch {
    fn at_least(&mut self, blocks: usize) -> &mut [Block] {
        if self.0.len() < blocks {
            self.0.resize(blocks, Block::default());
        }
        &mut self.0[..blocks]
    }

    /// Whether it holds no memory.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives memory beyond `blocks` KiB back, so that one costly stored hash does not stay resident.
    pub fn trim(&mut self, blocks: usize) {
        if self.0.len() > blocks {
            self.0.truncate(blocks);
            self.0.shrink_to_fit();
        }
    }
}

/// A stored hash, taken apart and within bounds.
struct Parsed {
    argon2: Argon2<'static>,
    blocks: usize,
    salt: Vec<u8>,
    expected: Vec<u8>,
    params: HashParams,
    algorithm: Algorithm,
}

fn parse(text: &str) -> Result<Parsed, PhcError> {
    let phc = Phc::new(text).map_err(|_| PhcError::Malformed)?;
    let algorithm =
        Algorithm::try_from(phc.algorithm).map_err(|_| PhcError::Algorithm(phc.algorithm.as_str().to_owned()))?;
    let version = match phc.version {
        None => Version::V0x13,
        Some(v) => Version::try_from(v).map_err(|_| PhcError::Bounds(format!("version {v}")))?,
    };
    // Before argon2 looks at them: it multiplies.
    for (name, value) in phc.params.iter() {
        let max = match name.as_str() {
            "m" => M_COST_MAX,
            "t" => T_COST_MAX,
            "p" => P_COST_MAX,
            _ => continue,
        };
        if value.decimal().is_ok_and(|value| value > max) {
            return Err(PhcError::Bounds(format!("{name}={value}, at most {max}")));
        }
    }
    let params = Params::try_from(&phc).map_err(|e| PhcError::Bounds(e.to_string()))?;
    let salt = phc.salt.ok_or(PhcError::Malformed)?;
    let mut bytes = [0u8; Salt::MAX_LENGTH];
    let salt = salt.decode_b64(&mut bytes).map_err(|_| PhcError::Malformed)?.to_vec();
    let expected = phc.hash.ok_or(PhcError::Malformed)?.as_bytes().to_vec();
    if salt.len() < 8 || expected.len() < 16 {
        return Err(PhcError::Bounds("salt of at least 8 and hash of at least 16 bytes".into()));
    }
    Ok(Parsed {
        params: HashParams { m_cost: params.m_cost(), t_cost: params.t_cost(), p_cost: params.p_cost() },
        blocks: params.block_count(),
        argon2: Argon2::new(algorithm, version, params),
        salt,
        expected,
        algorithm,
    })
}

/// Whether this broker can verify a hash.
pub fn check(text: &str) -> Result<(), PhcError> {
    parse(text).map(drop)
}

/// Whether a hash should be made anew with `wanted` parameters.
pub fn is_outdated(text: &str, wanted: HashParams) -> bool {
    parse(text).is_ok_and(|p| p.params != wanted || p.algorithm != Algorithm::Argon2id)
}

/// Whether `password` is the one behind `text`, compared in constant time.
pub fn verify(text: &str, password: &[u8], scratch: &mut Scratch) -> Result<bool, PhcError> {
    let parsed = parse(text)?;
    let mut actual = vec![0u8; parsed.expected.len()];
    parsed
        .argon2
        .hash_password_into_with_memory(password, &parsed.salt, &mut actual, scratch.at_least(parsed.blocks))
        .map_err(|_| PhcError::Hashing)?;
    Ok(actual.ct_eq(&parsed.expected).into())
}

/// Hashes `password` with a fresh salt.
pub fn hash(password: &[u8], params: HashParams) -> Result<PasswordHash, PhcError> {
    let bounds = |e: argon2::Error| PhcError::Bounds(e.to_string());
    let argon2 = Argon2::new(
        Algorithm::Argon2id,
        Version::V0x13,
        Params::new(params.m_cost, params.t_cost, params.p_cost, Some(HASH_BYTES)).map_err(bounds)?,
    );
    let salt = SaltString::encode_b64(&rand::random::<[u8; SALT_BYTES]>()).map_err(|_| PhcError::Hashing)?;
    let phc = argon2.hash_password(password, &salt).map_err(|_| PhcError::Hashing)?;
    Ok(PasswordHash(phc.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: HashParams = HashParams { m_cost: 64, t_cost: 1, p_cost: 1 };

    #[test]
    fn a_password_verifies_against_its_own_hash_only() {
        let mut scratch = Scratch::default();
        let hash = hash(b"secret", CHEAP).unwrap();
        assert!(verify(&hash.0, b"secret", &mut scratch).unwrap());
        for other in [&b"Secret"[..], b"", b"secret\0", b"secret "] {
            assert!(!verify(&hash.0, other, &mut scratch).unwrap());
        }
    }

    #[test]
    fn all_bytes_of_a_long_password_count() {
        let mut scratch = Scratch::default();
        let mut password = vec![0xff; 512];
        let hash = hash(&password, CHEAP).unwrap();
        assert!(verify(&hash.0, &password, &mut scratch).unwrap());
        password[511] = 0xfe;
        assert!(!verify(&hash.0, &password, &mut scratch).unwrap());
    }

    #[test]
    fn parameters_of_a_stored_hash_are_honoured_and_bounded() {
        let mut scratch = Scratch::default();
        let other = HashParams { m_cost: 128, t_cost: 3, p_cost: 2 };
        let stored = hash(b"x", other).unwrap();
        assert!(verify(&stored.0, b"x", &mut scratch).unwrap());
        assert!(is_outdated(&stored.0, CHEAP) && !is_outdated(&stored.0, other));
        let greedy = stored.0.replace("m=128", "m=4000000");
        assert!(matches!(verify(&greedy, b"x", &mut scratch), Err(PhcError::Bounds(_))));
        // Found by the fuzz target: eight times this many lanes is no number that argon2 knows.
        for absurd in ["m=999999999,t=4294967295,p=999999679", "m=8,t=1,p=536870912"] {
            let text = format!("$argon2d${absurd}$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA");
            assert!(matches!(check(&text), Err(PhcError::Bounds(_))), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_without_a_panic() {
        for text in [
            "",
            "$",
            "plain",
            "$argon2id$",
            "$2b$10$abc",
            "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$",
            "$argon2id$v=99$m=64,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
