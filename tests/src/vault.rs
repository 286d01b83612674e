//! Vaults for the tests: a small server that speaks hyperion-vault's API and can misbehave, and a real OpenBao; and a load
//! of requests to run meanwhile.

mod hyperion;
mod load;
mod openbao;

pub use hyperion::{Hyperion, Mood};
pub use load::Load;
pub use openbao::OpenBao;
