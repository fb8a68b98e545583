//! `alight pull --list`: the models of a repository.

use std::io::stdout;

use alight_hub::{Hub, Name};
use serde_json::json;

use super::{failed, full_name};
use crate::interrupt::Interrupt;
use crate::layout::columns;
use crate::layout::table::{Style, Table};
use crate::outcome::Outcome;
use crate::terminal_text::one_line;
use crate::{needs, output, units};

/// Prints the models of a repository, with their sizes.
pub fn list(hub: &Hub, name: &Name, json: bool) -> Outcome {
    let offers =
        Interrupt::during(|pressed| hub.offers(name, &mut || pressed())).map_err(failed)?;
    if json {
        for offer in &offers {
            output::json(&json!({
                "repo": name.repo,
                "tag": offer.model.tag(),
                "name": full_name(&name.repo, offer.model.tag()),
                "files": offer.model.files,
                "bytes": offer.bytes,
                "available_bytes": alight_pages::available_memory().0,
                "default": offer.is_default,
                "missing": offer.model.missing,
            }))?;
        }
        return Ok(());
    }
    // Names are long, and the lines of most terminals have 80 columns.
    let available = needs::available();
    let here =
        available.map_or_else(|| "here".to_owned(), |here| format!("here: {}", units::bytes(here)));
    let mut table = Table::new(["model", "size", &here], 1, Style::Plain);
    for offer in &offers {
        let tag = offer.model.tag();
        let here = match (&offer.model.missing, offer.bytes) {
            (Some(missing), _) => format!("lacks {}", one_line(missing)),
            (None, _) if offer.model.is_safetensors() => "to convert".to_owned(),
            (None, bytes) => {
                let fits =
                    bytes.zip(available).map(|(bytes, available)| match bytes <= available {
                        true => "fits",
                        false => "too large",
                    });
                let default = offer.is_default.then_some("default");
                fits.into_iter().chain(default).collect::<Vec<_>>().join(", ")
            }
        };
        let size = offer.bytes.map_or_else(|| "unknown".to_owned(), units::bytes);
        table.row([one_line(&full_name(&name.repo, tag)).into_owned(), size, here]);
    }
    output::report(table.text(columns(stdout())))
}
