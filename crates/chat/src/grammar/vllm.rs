//! vLLM's fields for the constraint on an answer: `guided_json` and its kin, and the same in the object `structured_outputs`.

use serde_json::{Value, json};

use super::{SCHEMA, Wanted, of_grammar};
use crate::body::fields::Fields;
use crate::body::refusal::Refusal;

/// Maximum number of texts of which an answer is one.
const MAX_CHOICES: usize = 1024;

/// Takes the constraints, each with the name of its field.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<(String, Wanted)>, Refusal> {
    let mut all = within(fields, "guided_", "guided_")?;
    if let Some(object) = fields.object("structured_outputs")? {
        let named = |refusal: Refusal| match refusal.param {
            // It names the field within the object.
            Some(param) if !param.starts_with(OBJECT) => Refusal {
                message: format!("{OBJECT}{}", refusal.message),
                param: Some(format!("{OBJECT}{param}")),
                ..refusal
            },
            param => Refusal { param, ..refusal },
        };
        let mut inner = Fields::new(object);
        all.extend(within(&mut inner, "", OBJECT)?);
        if inner.truth("json_object").map_err(named)? == Some(true) {
            let object = Wanted::lenient(json!({"type": "object"}));
            all.push((format!("{OBJECT}json_object"), object));
        }
        inner.ignore(&[
            "disable_any_whitespace",
            "disable_fallback",
            "disable_additional_properties",
        ]);
        inner.finish().map_err(named)?;
    }
    Ok(all)
}

const OBJECT: &str = "structured_outputs.";

/// Takes the fields whose names begin with `prefix`; for people they begin with `shown`.
fn within(
    fields: &mut Fields,
    prefix: &str,
    shown: &str,
) -> Result<Vec<(String, Wanted)>, Refusal> {
    let mut all = Vec::new();
    let mut add = |name: &str, wanted: Option<Wanted>| {
        all.extend(wanted.map(|wanted| (format!("{shown}{name}"), wanted)));
    };
    let name = |name: &str| format!("{prefix}{name}");
    let refused = |name: &str, refusal: Refusal| {
        let (param, short) = (format!("{shown}{name}"), format!("{prefix}{name}: "));
        let why = refusal.message.strip_prefix(&short).unwrap_or(&refusal.message);
        Refusal { message: format!("{param}: {why}"), param: Some(param), ..refusal.clone() }
    };
    // A longer text costs memory before its schema is found too long.
    let what = format!("a schema, as an object or as text of at most {} KiB", SCHEMA >> 10);
    let schema = fields.read(&name("json"), &what, |value| {
        Some(match value {
            Value::String(text) if text.len() <= SCHEMA => serde_json::from_str(&text).ok()?,
            schema @ (Value::Object(_) | Value::Bool(_)) => schema,
            _ => return None,
        })
    });
    add("json", schema.map_err(|why| refused("json", why))?.map(Wanted::lenient));
    for kind in ["regex", "grammar"] {
        let text = fields.string(&name(kind)).map_err(|why| refused(kind, why))?;
        let wanted = if kind == "regex" { Wanted::Regex } else { of_grammar };
        add(kind, text.filter(|text| !text.is_empty()).map(wanted));
    }
    let what = format!("a list of 1 to {MAX_CHOICES} texts, none of them empty");
    let choice = fields.read(&name("choice"), &what, |value| {
        let texts = value.as_array().filter(|all| (1..=MAX_CHOICES).contains(&all.len()))?;
        let texts = texts.iter().map(|text| {
            let text = text.as_str().filter(|text| !text.is_empty())?;
            Some(json!(text).to_string())
        });
        Some(Wanted::Lark(format!("start: {}", texts.collect::<Option<Vec<_>>>()?.join(" | "))))
    });
    add("choice", choice.map_err(|why| refused("choice", why))?);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: Value) -> Result<Vec<(String, String)>, Refusal> {
        let all = take(&mut Fields::new(body.as_object().unwrap().clone()))?;
        Ok(all.into_iter().map(|(name, wanted)| (name, wanted.text().into_owned())).collect())
    }

    #[test]
    fn each_constraint_has_two_names() {
        let schema = json!({"type": "integer"});
        for (name, value, wanted) in [
            ("json", schema.clone(), "{\"type\":\"integer\"}"),
            ("json", schema.to_string().into(), "{\"type\":\"integer\"}"),
            ("regex", json!("a+"), "a+"),
            ("grammar", json!("root ::= \"a\""), "root ::= \"a\""),
            ("choice", json!(["yes", "\"no\""]), "start: \"yes\" | \"\\\"no\\\"\""),
        ] {
            for (body, shown) in [
                (json!({(format!("guided_{name}")): value}), format!("guided_{name}")),
                (
                    json!({"structured_outputs": {name: value}}),
                    format!("structured_outputs.{name}"),
                ),
            ] {
                assert_eq!(taken(body).unwrap(), [(shown, wanted.to_owned())]);
            }
        }
        assert_eq!(taken(json!({"guided_json": null, "structured_outputs": null})).unwrap(), []);
    }

    #[test]
    fn other_constraints_are_refused_by_name() {
        for (body, param) in [
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": format!("{{{}}}", " ".repeat(SCHEMA))}), "guided_json"),
            (json!({"structured_outputs": {"regex": 7}}), "structured_outputs.regex"),
            (
                json!({"structured_outputs": {"structural_tag": "x"}}),
                "structured_outputs.structural_tag",
            ),
        ] {
            let refusal = taken(body).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param));
            assert!(refusal.message.starts_with(&format!("{param}: ")), "{}", refusal.message);
        }
    }
}
