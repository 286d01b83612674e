//! Takes a request body in: declared as JSON, bounded in length, in time.
//!
//! salvo's own extractor is not used: it takes other content types, has one limit for everybody and waits for ever.

use std::time::Duration;

use futures::StreamExt;
use salvo::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use salvo::http::{HeaderMap, Mime, ReqBody, Request, StatusCode};
use zeroize::Zeroizing;

use crate::error::ApiError;
use crate::json::{Object, parse_object};

/// Reads the body as one JSON object of at most `bytes_max` bytes that arrives within `patience`.
pub(crate) async fn read_object(req: &mut Request, bytes_max: usize, patience: Duration) -> Result<Object, ApiError> {
    check_content_type(req.headers())?;
    let declared = req.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|length| length > bytes_max as u64) {
        // Not read at all: whoever asked first (`Expect: 100-continue`) need not send it.
        return Err(too_large(bytes_max));
    }
    let body = req.take_body();
    let capacity = declared.map_or(0, |length| length as usize);
    match tokio::time::timeout(patience, collect(body, capacity, bytes_max)).await {
        // Passwords pass through here, so the buffer is wiped when it is dropped.
        Ok(bytes) => parse_object(&bytes?),
        Err(_) => Err(late(patience)),
    }
}

/// Reads the body as bytes, whatever it is declared as, within the same bounds.
pub(crate) async fn read_bytes(req: &mut Request, bytes_max: usize, patience: Duration) -> Result<Vec<u8>, ApiError> {
    let declared = req.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let body = req.take_body();
    match tokio::time::timeout(patience, collect(body, declared.map_or(0, |length| length as usize), bytes_max)).await {
        Ok(bytes) => Ok(std::mem::take(&mut *bytes?)),
        Err(_) => Err(late(patience)),
    }
}

fn late(patience: Duration) -> ApiError {
    let error = format!("the body did not arrive within {} s", patience.as_secs_f32());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, error).closing()
}

async fn collect(mut body: ReqBody, capacity: usize, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    while let Some(frame) = body.next().await {
        let frame = frame.map_err(|_| ApiError::bad_request("the body could not be read to its end").closing())?;
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have at most {bytes_max} bytes")).closing()
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |error| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(declared), None) = (types.next(), types.next()) else {
        return refuse("send one `Content-Type: application/json`");
    };
    let plain_json = declared.to_str().ok().and_then(|v| v.parse::<Mime>().ok()).is_some_and(|mime| {
        mime.essence_str().eq_ignore_ascii_case("application/json")
            && mime.params().all(|(name, value)| name == "charset" && value.as_str().eq_ignore_ascii_case("utf-8"))
    });
    if !plain_json {
        return refuse("the body must be `application/json` in UTF-8");
    }
    let encoded = headers.get_all(CONTENT_ENCODING).iter().any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"));
    if encoded {
        return refuse("the body must not be compressed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use salvo::http::HeaderValue;

    fn accepts(values: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_TYPE, HeaderValue::from_static(value));
        }
        check_content_type(&headers).is_ok()
    }

    #[test]
    fn only_json_in_utf8_is_a_json_body() {
        for good in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            assert!(accepts(&[good]), "{good}");
        }
        for bad in [
            "",
            "json",
            "text/json",
            "text/plain",
            "application/json; charset=latin1",
            "application/json; x=y",
            "application/jsonp",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=a",
            "*/*",
        ] {
            assert!(!accepts(&[bad]), "{bad}");
        }
        assert!(!accepts(&[]));
        assert!(!accepts(&["application/json", "application/json"]));
    }
}
