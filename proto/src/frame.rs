//! Pure: what a frame of the link takes in memory once it is decoded, told from its bytes before anything is allocated. On the
//! wire an empty message in a list is two bytes, decoded it is a struct of some hundreds: without this a frame of a megabyte
//! of nothing becomes hundreds, and a hub has thousands of streams. Reads no meaning: what is wrong with a frame is the decoder's to
//! say, and a frame that cannot be followed here is refused. Called by `codec.rs` for each message of either direction.

use std::{collections::BTreeMap, sync::OnceLock};

use prost::{
    DecodeError, Message as _,
    encoding::{WireType, decode_key, decode_varint},
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

use crate::{DESCRIPTORS, limits, link::v1};

/// What an allocator hands out at least for a text that is not empty: 24 bytes and its own 8.
const PIECE_BYTES: usize = 32;
/// A vector that grows doubles, so that up to half of it is empty.
const GROWTH: usize = 2;
/// An entry of a map: key and value at 24 bytes, its place in a node of the tree that may be half empty, and two texts.
const ENTRY_BYTES: usize = 160;
/// An element of a list of numbers, of which the wire may hold one a byte.
const NUMBER_BYTES: usize = 8;
/// A message in a list whose size is not listed below: more than any of them.
const UNLISTED_BYTES: usize = 1024;

/// A message that comes as a frame of its own.
pub trait Frame {
    /// Its name in the .proto files.
    const NAME: &'static str;
}

impl Frame for v1::AttachRequest {
    const NAME: &'static str = "AttachRequest";
}

impl Frame for v1::AttachResponse {
    const NAME: &'static str = "AttachResponse";
}

/// Whether a frame may be decoded.
///
/// # Errors
/// When it would take more than [`limits::DECODED_BYTES_MAX`], or cannot be followed.
pub fn check<M: Frame>(frame: &[u8]) -> Result<(), Error> {
    decoded_bytes(M::NAME, frame).map(drop)
}

/// At most so many bytes the message `name` takes once it is decoded from `frame`, its own struct not counted.
///
/// # Errors
/// As [`check`].
pub fn decoded_bytes(name: &str, frame: &[u8]) -> Result<usize, Error> {
    let shapes = shapes();
    let root = shapes.names.get(name).copied().ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
    let mut bytes = 0;
    follow(shapes, root, frame, &mut bytes)?;
    Ok(bytes)
}

/// How to follow one message: by the number of a field, what each occurrence of it takes.
type Shape = Vec<Option<Field>>;

#[derive(Clone, Copy, Debug)]
struct Field {
    /// For the occurrence itself, apart from the bytes that it carries.
    each: usize,
    /// For each byte that it carries.
    a_byte: usize,
    /// The message in it.
    inner: Option<usize>,
}

#[derive(Debug)]
struct Shapes {
    names: BTreeMap<String, usize>,
    shapes: Vec<Shape>,
}

/// Read once from the descriptors, so that no field of a later version is forgotten.
fn shapes() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| {
        let messages = messages();
        let names: BTreeMap<String, usize> =
            messages.iter().enumerate().map(|(at, message)| (message.name().to_owned(), at)).collect();
        let shapes = messages.iter().map(|message| shape(message, &names)).collect();
        Shapes { names, shapes }
    })
}

fn messages() -> Vec<DescriptorProto> {
    let set = FileDescriptorSet::decode(DESCRIPTORS).expect("the build script encoded it");
    set.file.into_iter().filter(|file| file.package() == "gpuheal.link.v1").flat_map(|file| file.message_type).collect()
}

fn shape(message: &DescriptorProto, names: &BTreeMap<String, usize>) -> Shape {
    let mut shape = Shape::new();
    for field in &message.field {
        let number = usize::try_from(field.number()).expect("numbers of fields are natural");
        shape.resize(shape.len().max(number + 1), None);
        shape[number] = Some(weigh(message, field, names));
    }
    shape
}

fn weigh(message: &DescriptorProto, field: &FieldDescriptorProto, names: &BTreeMap<String, usize>) -> Field {
    let name = field.type_name().rsplit('.').next().unwrap_or_default();
    let many = field.label() == Label::Repeated;
    match field.r#type() {
        // A map's entry is a message within the one that holds it; what it holds is counted whole.
        Type::Message if message.nested_type.iter().any(|entry| entry.name() == name) => {
            Field { each: ENTRY_BYTES, a_byte: 1, inner: None }
        }
        Type::Message => {
            let each = if many { GROWTH * size_of_message(name).unwrap_or(UNLISTED_BYTES) } else { 0 };
            Field { each, a_byte: 0, inner: names.get(name).copied() }
        }
        Type::String | Type::Bytes => {
            let in_list = if many { GROWTH * size_of::<String>().max(size_of::<prost::bytes::Bytes>()) } else { 0 };
            Field { each: in_list + PIECE_BYTES, a_byte: 1, inner: None }
        }
        _ if many => Field { each: GROWTH * NUMBER_BYTES, a_byte: GROWTH * NUMBER_BYTES, inner: None },
        _ => Field { each: 0, a_byte: 0, inner: None },
    }
}

/// Follows `message` and adds up. As deep as the messages of the .proto files are within each other, of which none holds itself.
fn follow(shapes: &Shapes, message: usize, mut rest: &[u8], bytes: &mut usize) -> Result<(), Error> {
    let shape = &shapes.shapes[message];
    while !rest.is_empty() {
        let (number, wire) = decode_key(&mut rest)?;
        let field = shape.get(number as usize).copied().flatten();
        let carried = carried(wire, &mut rest)?;
        let Some(field) = field else { continue };
        *bytes = bytes.saturating_add(field.each).saturating_add(field.a_byte.saturating_mul(carried.len()));
        if *bytes > limits::DECODED_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if let (Some(inner), WireType::LengthDelimited) = (field.inner, wire) {
            follow(shapes, inner, carried, bytes)?;
        }
    }
    Ok(())
}

/// What one record carries, which is passed over.
fn carried<'a>(wire: WireType, rest: &mut &'a [u8]) -> Result<&'a [u8], Error> {
    let length = match wire {
        WireType::Varint => decode_varint(rest).map(|_| 0)?,
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => decode_varint(rest)?,
        // Nobody writes them any more.
        WireType::StartGroup | WireType::EndGroup => return Err(Error::Group),
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (carried, after) = rest.split_at_checked(length).ok_or(Error::Torn)?;
    *rest = after;
    Ok(carried)
}

/// Messages that lists hold.
macro_rules! sizes {
    ($($message:ident),+ $(,)?) => {
        fn size_of_message(name: &str) -> Option<usize> {
            match name {
                $(stringify!($message) => Some(size_of::<v1::$message>()),)+
                _ => None,
            }
        }
    };
}

sizes!(
    ConditionRule,
    EnvelopeSignature,
    Evidence,
    Fault,
    FaultAsked,
    GpuRef,
    JournalHead,
    NodeState,
    PodStatus,
    PodSummary,
    ResumePoint,
    SourceState,
    Step,
    StepStatus,
    UndoField,
);

/// Why a frame may not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It takes too much.
    #[error("a message that takes more than {} bytes once decoded", limits::DECODED_BYTES_MAX)]
    TooLarge,
    /// It ends within a record.
    #[error("a message that ends within a field")]
    Torn,
    /// A form of old.
    #[error("a message with a group in it")]
    Group,
    /// No field's head.
    #[error("a message that is none")]
    Malformed(#[from] DecodeError),
    /// No message of the link's.
    #[error("the link has no message {name}")]
    Unknown {
        /// Its name.
        name: String,
    },
}

#[cfg(test)]
mod tests;
