//! The bearer token: compared in constant time, by digests, so that neither its bytes nor its length leak.

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Deps, refusal, unavailable};

/// Shortest token that counts: 16 characters of base64 are 96 bits.
const TOKEN_BYTES_MIN: usize = 16;

/// Passes who shows the token.
pub(super) async fn check(deps: &Deps, headers: &HeaderMap) -> Result<(), Response> {
    let Some(path) = &deps.token_file else {
        return Err(unauthorised("no token is configured here, so nobody may post"));
    };
    let want = match tokio::fs::read(path).await {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::error!(%error, "token file cannot be read");
            return Err(unavailable("token cannot be read", 10));
        }
    };
    let want = want.trim_ascii();
    if want.len() < TOKEN_BYTES_MIN {
        tracing::error!(bytes = want.len(), "token file holds too short a token");
        return Err(unauthorised("the token configured here is too short to count"));
    }
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let same = shown.is_some_and(|shown| Sha256::digest(shown).ct_eq(&Sha256::digest(want)).into());
    if same { Ok(()) } else { Err(unauthorised("a bearer token is needed")) }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn unauthorised(error: &str) -> Response {
    let mut response = refusal(StatusCode::UNAUTHORIZED, error);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
