//! What runs beside the API server.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Controllers;
use crate::store::Store;

pub(crate) async fn run(_store: Arc<Store>, _enabled: Controllers, stop: CancellationToken) {
    stop.cancelled().await;
}
