//! `POST /slots/N?action=save|restore|erase`: saves the state computed for the last prompt of a sequence to a file, and restores
//! it.
//!
//! The prompt is saved, the answer to it is not: a later prompt that contains both reads the answer again, with the arithmetic of
//! prompts, so an answer does not depend on what was saved. A restored file is of use to every sequence.

use std::path::PathBuf;
use std::time::Instant;

use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use alight_chat::worker::OwnPrompt;
use alight_model::{PromptFileError, PromptWriteError, RestoreError};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::models::Serving;
use crate::worker;

/// Maximum length of a file's name in bytes.
const MAX_NAME_BYTES: usize = 128;

pub(crate) async fn answer(call: Call) -> Answered {
    if call.server.options.slot_files.is_none() {
        return Err(Failure::off("--slot-save-path DIR"));
    }
    let (number, serving, place) = find(&call)?;
    let mut done = match call.asked("action").as_deref() {
        Some("save") => save(&call, serving, place).await,
        Some("restore") => restore(&call, serving, place).await,
        Some("erase") => erase(&call, serving, place).await,
        _ => Err(Failure::invalid("the address needs ?action=save, restore or erase")),
    }?;
    done["id_slot"] = number.into();
    Ok(http::json(StatusCode::OK, &done))
}

/// Returns the number in the path, and the model and its place that `/slots` lists under it.
fn find(call: &Call) -> Result<(usize, &Serving, usize), Failure> {
    let places = call.server.options.engine.sequences;
    let models = call.server.models.all();
    let number = call.named.parse::<usize>().ok();
    let found = number.and_then(|n| Some((n, models.get(n / places)?, n % places)));
    found.ok_or_else(|| {
        let last = places * models.len() - 1;
        Failure::invalid(format!("there is no slot {:?}, expected 0 to {last}", &*call.named))
    })
}

/// Returns the file that the body names, directly in the folder.
fn file(call: &Call) -> Result<(String, PathBuf), Failure> {
    let mut fields = Fields::new(call.object()?);
    let missing = || Refusal::invalid("filename", "it is missing");
    let name = fields.string("filename")?.ok_or_else(missing)?;
    let plain = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || name.starts_with('.')
        || !name.chars().all(plain)
    {
        let why = format!(
            "expected up to {MAX_NAME_BYTES} bytes of letters, digits, '-', '_', '.' and ' ', of which '.' is not the first"
        );
        return Err(Refusal::invalid("filename", &why).into());
    }
    let folder = call.server.options.slot_files.clone().unwrap_or_default();
    Ok((name.clone(), folder.join(name)))
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

async fn save(call: &Call, serving: &Serving, place: usize) -> Result<Value, Failure> {
    let ((name, path), salt, began) = (file(call)?, call.salt.clone(), Instant::now());
    let saved = worker::between(&serving.worker, move |access| match &access.prompts[place] {
        Some(own) if own.salt == salt => {
            access.engine.save((&salt, &own.adapters), &own.tokens, &path)
        }
        _ => Ok(None),
    });
    match saved.await? {
        Ok(Some((tokens, bytes))) => Ok(json!({
            "filename": name,
            "n_saved": tokens,
            "n_written": bytes,
            "timings": {"save_ms": milliseconds(began)},
        })),
        Ok(None) => Err(Failure::invalid("nothing is kept of a prompt of this slot")),
        Err(PromptWriteError::NotOurs { why, .. }) => Err(Failure::invalid(format!(
            "{name:?} is not saved: the file of that name {why}, and stays as it is: a prompt replaces only a prompt file"
        ))),
        Err(error) => {
            let why = serving.errors.logged(&error);
            Err(Failure::internal(format!("the prompt is not saved: {why}")))
        }
    }
}

async fn restore(call: &Call, serving: &Serving, place: usize) -> Result<Value, Failure> {
    let ((name, path), salt, began) = (file(call)?, call.salt.clone(), Instant::now());
    // A file is of the adapters that its prompt was computed with.
    let adapters = serving.adapters.standing()?;
    let restored = worker::between(&serving.worker, move |access| {
        let (tokens, bytes) = access.engine.restore((&salt, &adapters), &path)?;
        let count = tokens.len();
        access.prompts[place] = Some(OwnPrompt { salt, adapters, tokens });
        Ok((count, bytes))
    });
    match restored.await? {
        Ok((tokens, bytes)) => Ok(json!({
            "filename": name,
            "n_restored": tokens,
            "n_read": bytes,
            "timings": {"restore_ms": milliseconds(began)},
        })),
        Err(error @ RestoreError::NoRoom) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(Failure::new(status, "unavailable_error", error.to_string()))
        }
        // An error must not reveal bytes of other files.
        Err(RestoreError::File(PromptFileError::Magic { .. })) => {
            Err(Failure::invalid(format!("{name:?} is not restored: it is no prompt file")))
        }
        Err(error) => {
            let why = serving.errors.text(&error);
            Err(Failure::invalid(format!("{name:?} is not restored: {why}")))
        }
    }
}

async fn erase(call: &Call, serving: &Serving, place: usize) -> Result<Value, Failure> {
    let salt = call.salt.clone();
    let erased = worker::between(&serving.worker, move |access| {
        let own = access.prompts[place].take_if(|own| own.salt == salt);
        own.map_or(0, |own| access.engine.forget((&own.salt, &own.adapters), &own.tokens))
    });
    Ok(json!({"n_erased": erased.await?}))
}
