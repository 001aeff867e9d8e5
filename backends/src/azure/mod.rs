//! placeholder

use crate::location::Remote;
use crate::remote::{Driver, Refusal};
use std::path::Path;
use std::sync::Arc;

pub(crate) async fn connect(
    _remote: &Remote,
    _credentials: Option<&Path>,
) -> Result<Arc<dyn Driver>, Refusal> {
    Err(Refusal::new(crate::StoreErrorKind::Other, "not there yet"))
}
