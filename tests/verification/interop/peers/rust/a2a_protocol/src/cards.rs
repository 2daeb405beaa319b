//! Signs and verifies as the crate does. The order and the answer are those of peer_python.py.

use a2a_protocol_types::signing::{sign_card_es256, verify_card_json_with_jwks, Jwks};
use a2a_protocol_types::AgentCard;
use base64::{engine::general_purpose::STANDARD, Engine};
use serde_json::{json, Map, Value};

pub fn answer() {
    let order: Value = serde_json::from_reader(std::io::stdin()).expect("an order");
    let keys: Jwks = serde_json::from_value(order["public_jwks"].clone()).expect("a JWK Set");
    let pem = order["private_pem"].as_str().expect("a key");
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = STANDARD.decode(body).expect("PEM");
    let (mut verified, mut signed, mut failed) = (Map::new(), Map::new(), Map::new());
    for (name, card) in order["verify"].as_object().expect("cards") {
        let refusal = verify_card_json_with_jwks(card, &keys).err();
        verified.insert(name.clone(), json!(refusal.map(|error| error.to_string())));
    }
    for (name, card) in order["sign"].as_object().expect("cards") {
        match sign(card, &key) {
            Ok(card) => signed.insert(name.clone(), card),
            Err(reason) => failed.insert(name.clone(), json!(reason)),
        };
    }
    println!("{}", json!({"verified": verified, "signed": signed, "failed": failed}));
}

/// Reads a card, signs it, and writes it as a server of the crate serves it.
fn sign(card: &Value, key: &[u8]) -> Result<Value, String> {
    let mut card: AgentCard =
        serde_json::from_value(card.clone()).map_err(|error| error.to_string())?;
    let signature = sign_card_es256(&card, key, "key-1").map_err(|error| error.to_string())?;
    card.signatures = Some(vec![signature]);
    serde_json::to_value(&card).map_err(|error| error.to_string())
}
