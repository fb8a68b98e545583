//! Memory that a session keeps, for architectures that alight runs: keys and values of each position, states that do not grow,
//! and attention sinks.

use std::io::{self, Write};

use alight_formats::gguf::Gguf;
use alight_model::ModelSpec;
use serde::Serialize;

use crate::units;

/// Memory that a session keeps.
#[derive(Debug, Serialize)]
pub struct SessionMemory {
    /// Bytes of keys and values of each position, in all layers that store any. (Layers with a window store them too.)
    kv_bytes_per_position: usize,
    /// Layers that store keys and values.
    kv_layers: usize,
    /// Bytes of the states of recurrent layers, independent of the length of the sequence.
    state_bytes: usize,
    /// Layers with such a state.
    state_layers: usize,
    /// Layers whose attention has sinks.
    sink_layers: usize,
}

impl SessionMemory {
    /// Returns it for a model with this header. `None`: alight does not run it.
    pub fn of(gguf: &Gguf<'_>) -> Option<SessionMemory> {
        let spec = ModelSpec::from_gguf(gguf).ok()?;
        let (kv, states) = (spec.stored_per_position(), spec.states());
        Some(SessionMemory {
            kv_bytes_per_position: kv.clone().sum(),
            kv_layers: kv.count(),
            state_bytes: states.clone().sum(),
            state_layers: states.count(),
            sink_layers: spec.attention_layers().filter(|spec| spec.sinks.is_some()).count(),
        })
    }

    /// Writes the lines of the heading.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let layers = |count: usize| units::so_many(count, "layer");
        let bytes = |bytes: usize| units::bytes(bytes as u64);
        if self.kv_layers > 0 {
            let sinks = match self.sink_layers {
                0 => String::new(),
                some => format!("; attention sinks in {}", layers(some)),
            };
            let each = bytes(self.kv_bytes_per_position);
            writeln!(
                out,
                "cache         {each} for each position, of {}{sinks}",
                layers(self.kv_layers)
            )?;
        }
        if self.state_layers > 0 {
            let all = bytes(self.state_bytes);
            writeln!(out, "states        {all}, of {}, at any length", layers(self.state_layers))?;
        }
        Ok(())
    }
}
