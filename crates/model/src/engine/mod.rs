//! The forward pass: the layers of a network, one after the other, on the rows of a call.

mod buffers;
mod compute;
mod net;

pub(crate) use self::buffers::{Buffers, WorkSize};
pub(crate) use self::net::{Net, Step, Want};
