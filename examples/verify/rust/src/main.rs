//! Verifies the vectors in DIRECTORY: verify DIRECTORY. Prints a line of JSON for each.

#[allow(dead_code)] // some claims are only for applications
mod verify;

use jsonwebtoken::jwk::JwkSet;
use serde::Deserialize;
use std::{env, fs, path::Path};

#[derive(Deserialize)]
struct Document {
    now: i64,
    senders: Vec<Sender>,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Sender {
    name: String,
    profile: String,
    schemes: Vec<String>,
    issuer: Option<String>,
    audience: Option<String>,
}

#[derive(Deserialize)]
struct Vector {
    id: String,
    request: Request,
}

#[derive(Deserialize)]
struct Request {
    sender: String,
    headers: Vec<(String, String)>,
    body: String,
}

fn main() {
    let folder = env::args().nth(1).expect("verify DIRECTORY");
    let read = |name| fs::read_to_string(Path::new(&folder).join(name)).expect(name);
    let found: Document = serde_json::from_str(&read("notifications.json")).expect("the vectors");
    let keys: JwkSet = serde_json::from_str(&read("jwks.json")).expect("the keys");
    for sender in &found.senders {
        if sender.profile != "standard" || !sender.schemes.iter().any(|scheme| scheme == "jwt") {
            continue;
        }
        let issuer = sender.issuer.as_deref().expect("an issuer");
        let audience = sender.audience.as_deref().expect("an audience");
        for Vector { id, request } in &found.vectors {
            if request.sender != sender.name {
                continue;
            }
            let header = |name: &str| {
                let fields = request.headers.iter();
                let own = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
                own.map(|(_, value)| value.clone()).collect()
            };
            let body = request.body.as_bytes();
            let result = verify::verify(header, body, &keys, issuer, audience, found.now);
            let reason = result.as_ref().err();
            let line = serde_json::json!({"id": id, "accepted": result.is_ok(), "reason": reason});
            println!("{line}");
        }
    }
}
