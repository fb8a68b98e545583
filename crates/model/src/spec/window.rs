//! The sliding windows that the keys of an architecture describe.

use alight_formats::gguf::Value;

use super::SpecError;
use super::keys::Keys;

/// The width of the sliding window, `default` where the file does not say; 0 is none.
///
/// # Errors
/// A value that is no width.
pub(crate) fn window(keys: &Keys<'_, '_>, default: usize) -> Result<Option<usize>, SpecError> {
    let window = match keys.get::<u64>("attention.sliding_window")? {
        None => default,
        // A window beyond any context is no window, but keeps the layers' rotary embedding.
        Some(window) => usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30),
    };
    Ok(Some(window).filter(|window| *window > 0))
}

/// Which layers have a sliding window: the file's list of flags, or all but the last of its period (0: all layers).
///
/// # Errors
/// A list that is not one flag per layer.
pub(crate) fn windowed_layers(
    keys: &Keys<'_, '_>,
    layers: usize,
    period: usize,
) -> Result<Vec<bool>, SpecError> {
    let key = "attention.sliding_window_pattern";
    let period = match keys.gguf.get(&keys.name(key)) {
        Some(Value::Array(array)) => {
            let flags: Vec<bool> = match (array.iter_bool(), array.iter_int()) {
                (Some(flags), _) => flags.collect(),
                (_, Some(numbers)) => numbers.map(|number| number != 0).collect(),
                _ => Vec::new(),
            };
            if flags.len() < layers {
                let found = format!("an array of {} flags", flags.len());
                return Err(keys.value(key, found, format!("{layers}, one per layer")));
            }
            return Ok(flags[..layers].to_vec());
        }
        Some(_) => keys.get::<u32>(key)?.map_or(period, |period| period as usize),
        None => period,
    };
    Ok((0..layers).map(|layer| period == 0 || layer % period < period - 1).collect())
}
