//! A request's body, whole: no larger than the caller allows and no slower than anybody honest is. Who shows the token may
//! still be slow on purpose, and each byte that is waited for holds a connection.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};

use super::refusal;

/// From the head's end to the body's: the largest webhook at a tenth of a slow link's speed.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The body; 413 when it is larger than `bytes_max`, 408 when it takes too long.
pub(super) async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Response> {
    read_within(BODY_WITHIN, body, bytes_max).await
}

/// 413.
pub(super) fn too_large(bytes_max: usize) -> Response {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("body is larger than {bytes_max} bytes"))
}

async fn read_within(within: Duration, body: Body, bytes_max: usize) -> Result<Bytes, Response> {
    match tokio::time::timeout(within, axum::body::to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large(bytes_max)),
        Err(_) => {
            let mut response = refusal(StatusCode::REQUEST_TIMEOUT, format!("body did not come within {} s", within.as_secs()));
            // What still comes on this connection is no request.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            Err(response)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;

    #[tokio::test]
    async fn a_body_that_drips_is_cut_off_and_a_whole_one_is_read() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{\"alerts\""))]);
        let dripping = Body::from_stream(first.chain(stream::pending()));
        let refused = read_within(Duration::from_millis(50), dripping, 64).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(refused.headers()[header::CONNECTION], "close");
        assert_eq!(read(Body::from("whole"), 5).await.unwrap(), "whole");
        assert_eq!(read(Body::from("larger"), 5).await.unwrap_err().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
