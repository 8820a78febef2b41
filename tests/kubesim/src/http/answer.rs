//! An answer before it becomes an HTTP response.

use std::time::Duration;

use ::http::{HeaderValue, Response, StatusCode, header};
use axum::body::{Body, Bytes};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde_json::Value;

use crate::status::ApiError;

pub(crate) enum Payload {
    Json(String),
    Text(String),
    Stream(BoxStream<'static, Bytes>),
}

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) payload: Payload,
    /// For the recorder: what the server took no notice of.
    pub(crate) ignored_fields: Vec<String>,
    pub(crate) retry_after: Option<u32>,
}

impl Answer {
    pub(crate) fn json(code: u16, text: String) -> Self {
        Self { code, payload: Payload::Json(text), ignored_fields: Vec::new(), retry_after: None }
    }

    pub(crate) fn value(code: u16, value: &Value) -> Self {
        Self::json(code, value.to_string())
    }

    pub(crate) fn text(code: u16, text: &str) -> Self {
        Self { code, payload: Payload::Text(text.to_owned()), ignored_fields: Vec::new(), retry_after: None }
    }

    pub(crate) fn stream(stream: BoxStream<'static, Bytes>) -> Self {
        Self { code: 200, payload: Payload::Stream(stream), ignored_fields: Vec::new(), retry_after: None }
    }

    pub(crate) fn ignoring(mut self, fields: Vec<String>) -> Self {
        self.ignored_fields = fields;
        self
    }

    /// The same answer in pieces with pauses between them.
    pub(crate) fn slow(self, pause: Duration, bytes: usize) -> Self {
        let (Payload::Json(text) | Payload::Text(text)) = self.payload else { return self };
        let pieces: Vec<Bytes> = text.as_bytes().chunks(bytes.max(1)).map(Bytes::copy_from_slice).collect();
        let stream = stream::iter(pieces).then(move |piece| async move {
            tokio::time::sleep(pause).await;
            piece
        });
        Self { payload: Payload::Stream(stream.boxed()), ..self }
    }

    pub(crate) fn into_response(self, date: DateTime<Utc>) -> Response<Body> {
        let (kind, body) = match self.payload {
            Payload::Json(text) => ("application/json", Body::from(text)),
            Payload::Text(text) => ("text/plain; charset=utf-8", Body::from(text)),
            Payload::Stream(stream) => ("application/json", Body::from_stream(stream.map(Ok::<_, std::convert::Infallible>))),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        let date = date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        headers.insert(header::DATE, HeaderValue::from_str(&date).expect("a date is plain ASCII"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        Self { retry_after: error.retry_after_seconds.filter(|s| *s > 0), ..Self::value(error.code, &error.to_value()) }
    }
}
