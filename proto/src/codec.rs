//! How the link's messages are read and written by tonic: as protobuf, and read only after it was seen that they will not take
//! more memory than they may. Named by `build.rs` for the link's stubs, at both ends.

use std::marker::PhantomData;

use prost::{Message, bytes::Buf as _};
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::frame::{self, Frame};

/// Reads `U` and writes `T`.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Frame + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Bounded<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Bounded(ProstDecoder::default())
    }
}

/// Reads what is known to be bounded.
#[derive(Debug)]
pub struct Bounded<U>(ProstDecoder<U>);

impl<U: Message + Default + Frame> Decoder for Bounded<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic gathers a message whole before it asks; were it in pieces, the first would not be all of it.
        if buf.chunk().len() != buf.remaining() {
            return Err(Status::internal("a message in pieces"));
        }
        frame::check::<U>(buf.chunk()).map_err(|error| Status::resource_exhausted(error.to_string()))?;
        self.0.decode(buf)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
