//! Code that tests of several crates share: [`models`] are small random ones of every architecture, written as files; [`definition`] computes
//! in float64 what they have to; [`adapters`] are random adapters of them; [`encoders`] and [`encoder_definition`] are the same of networks that make vectors of texts; [`packed`] writes the packed form of a file from its description alone.
//!
//! It depends on nothing that it is used to test but the GGUF writer and the conversions of numbers. It is optimised, as the programs of tests are
//! not (`scripts/rustc_for_tests.sh`): the definition is most of what tests of models compute.

#![expect(
    missing_docs,
    reason = "fields without a comment have the name of the GGUF key or tensor that they become"
)]

pub mod adapters;
pub mod definition;
pub mod encoder_definition;
pub mod encoders;
pub mod models;
pub mod packed;
