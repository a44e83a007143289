//! Reading the vectors that the Python spec wrote (`tests/vectors` of the repository).

use serde_json::Value as Json;

pub fn vectors(name: &str) -> Json {
    let path = format!("{}/../../tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn list(json: &Json) -> &Vec<Json> {
    json.as_array().unwrap()
}

pub fn text(json: &Json) -> &str {
    json.as_str().unwrap()
}

pub fn number(json: &Json) -> u64 {
    json.as_u64().unwrap()
}

pub fn bytes(json: &Json) -> Vec<u8> {
    let digits = text(json);
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}
