use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{decode, decode_header, Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Claims of a notification. `iss` and `aud` have been compared.
#[derive(Debug, Deserialize)]
pub struct Claims {
    pub iat: i64,
    pub exp: i64,
    pub jti: String,
    pub request_body_sha256: String,
    #[serde(rename = "taskId")]
    pub task_id: Option<String>,
    #[serde(rename = "configId")]
    pub config_id: Option<String>,
    pub seq: Option<u64>,
}

/// Checks the signature, issuer, audience, time and body of a notification. The caller still has to
/// compare the token, and to remember `jti`.
///
/// `header` returns the values of a field, by its name in any case.
pub fn verify(
    header: impl Fn(&str) -> Vec<String>,
    body: &[u8],
    keys: &JwkSet,
    issuer: &str,
    audience: &str,
    now: i64,
) -> Result<Claims, String> {
    let compact = find(&header)?;
    let head = decode_header(&compact).map_err(|error| error.to_string())?;
    if head.crit.is_some() {
        return Err("crit: no extension is supported".into()); // jsonwebtoken ignores it
    }
    let kid = head.kid.ok_or("no kid")?;
    // The key decides about the algorithm, not the header.
    let own = |key: &Jwk| key.common.key_algorithm?.to_string().parse::<Algorithm>().ok();
    let named = |key: &&Jwk| key.common.key_id.as_ref() == Some(&kid) && own(key) == Some(head.alg);
    let key = keys.keys.iter().find(named).ok_or("no key of this sender has this kid and alg")?;
    let mut rules = Validation::new(head.alg);
    rules.set_issuer(&[issuer]);
    rules.set_audience(&[audience]);
    rules.set_required_spec_claims(&["exp", "iss", "aud"]);
    rules.validate_exp = false; // checked below, against `now`
    let key = DecodingKey::from_jwk(key).map_err(|error| error.to_string())?;
    let claims: Claims = decode(&compact, &key, &rules).map_err(|error| error.to_string())?.claims;
    if claims.request_body_sha256 != hex(&Sha256::digest(body)) {
        return Err("signed over another body".into());
    }
    if now.abs_diff(claims.iat) > 300 || now.saturating_sub(60) > claims.exp {
        return Err("the time is out of range".into());
    }
    if claims.jti.is_empty() || header("webhook-id").iter().any(|id| *id != claims.jti) {
        return Err("webhook-id and jti differ".into());
    }
    Ok(claims)
}

/// Returns the JWT: X-A2A-Signature, else a Bearer token.
fn find(header: &impl Fn(&str) -> Vec<String>) -> Result<String, String> {
    let own = header("x-a2a-signature");
    let given = header("authorization");
    match (own.as_slice(), given.as_slice()) {
        ([token], _) => Ok(token.clone()),
        ([], [value]) => match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                Ok(token.trim().to_string())
            }
            _ => Err("no Bearer token".into()),
        },
        _ => Err("expected one JWT".into()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
