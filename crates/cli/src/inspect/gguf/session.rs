//! Memory that a session keeps, for architectures that alight runs: keys and values of each position, states that do not grow,
//! and attention sinks; and what a session of the default context needs altogether, beside the memory that is available here.

use std::io::{self, Write};

use alight_model::{DEFAULT_CONTEXT, KvType, ModelSpec};
use serde::Serialize;

use crate::needs::{self, Held};
use crate::units;

/// Memory that a session keeps.
#[derive(Debug, Serialize)]
pub struct SessionMemory {
    /// Bytes of keys and values of each position, in all layers that keep every position.
    kv_bytes_per_position: usize,
    /// These layers.
    kv_layers: usize,
    /// The same of layers with a window.
    window_bytes_per_position: usize,
    window_layers: usize,
    /// Maximum number of positions that those keep.
    window_positions: usize,
    /// Bytes of the states of recurrent layers, independent of the length of the sequence.
    state_bytes: usize,
    /// Layers with such a state.
    state_layers: usize,
    /// Layers whose attention has sinks.
    sink_layers: usize,
    /// Memory that a session with the default context needs.
    needed: Needed,
    /// Memory that this machine has available; null if the system does not report it.
    available_bytes: Option<u64>,
}

/// Memory that a session needs.
#[derive(Debug, Serialize)]
struct Needed {
    /// The positions of the context.
    positions: usize,
    #[serde(flatten)]
    held: Held,
}

impl SessionMemory {
    /// Returns it for a model of files of `bytes` altogether.
    pub fn of(spec: &ModelSpec, bytes: u64) -> SessionMemory {
        let positions = DEFAULT_CONTEXT.min(spec.context);
        let (kv, windows) = (
            spec.stored().filter(|stored| stored.positions.is_none()),
            spec.stored().filter(|stored| stored.positions.is_some()),
        );
        let states = spec.states();
        SessionMemory {
            kv_bytes_per_position: kv.clone().map(|stored| stored.bytes).sum(),
            kv_layers: kv.count(),
            window_bytes_per_position: windows.clone().map(|stored| stored.bytes).sum(),
            window_layers: windows.clone().count(),
            window_positions: windows.filter_map(|stored| stored.positions).max().unwrap_or(0),
            state_bytes: states.clone().sum(),
            state_layers: states.count(),
            sink_layers: spec.attention_layers().filter(|spec| spec.sinks.is_some()).count(),
            needed: Needed { positions, held: Held::of_spec(spec, bytes, positions, KvType::F16) },
            available_bytes: needs::available(),
        }
    }

    /// Writes the lines of the heading.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let layers = |count: usize| units::so_many(count, "layer");
        let bytes = |bytes: usize| units::bytes(bytes as u64);
        let mut sinks = match self.sink_layers {
            0 => String::new(),
            some => format!("; attention sinks in {}", layers(some)),
        };
        if self.window_layers > 0 {
            writeln!(
                out,
                "windows       {} for each of at most {} positions, of {}{sinks}",
                bytes(self.window_bytes_per_position),
                units::grouped(self.window_positions),
                layers(self.window_layers)
            )?;
            sinks.clear();
        }
        if self.kv_layers > 0 {
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
        let Needed { positions, held } = &self.needed;
        let needed = held.all();
        let fits = match self.available_bytes {
            None => String::new(),
            known => format!("\n              {}", needs::fits(needed, known)),
        };
        writeln!(
            out,
            "needs         {}: weights {}, {} positions {}{fits}",
            units::bytes(needed),
            units::bytes(held.mapped),
            units::grouped(*positions),
            units::bytes(held.keys_and_values),
        )
    }
}
