//! Pure: what a connection of ours says, changed so that it may be said to another server connection each transaction.
//! Three changes, none of which the answering side shows but by messages that our library passes over:
//!
//! - A statement that was given a name is kept here and sent unnamed; where it is used by its name, it is sent again right before,
//!   in the same breath. The library goes on preparing each statement once, and no way to the server is added.
//! - Where a transaction begins, the settings of a session of ours are set for that transaction, in the same message.
//! - Everything else is passed on byte for byte.
//!
//! Messages are those of the protocol's version 3, "Message Formats" in PostgreSQL's manual.

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// What the library says to begin a transaction.
const BEGIN: &[u8] = b"BEGIN\0";
/// Longest message that is waited for whole. A batch of 256 KiB of faults is one of some 400 KiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// A message's length counts itself.
const LENGTH_BYTES: usize = 4;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Rewriter<'a> {
    opening: &'a str,
    /// The first message has no letter.
    started: bool,
    /// Statements by their names: what follows the name in Parse. As many as the library keeps, which is 100.
    kept: BTreeMap<Bytes, Bytes>,
    /// Whose text the unnamed statement is, until the server may be another.
    unnamed: Option<Bytes>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(opening: &'a str) -> Self {
        Self { opening, started: false, kept: BTreeMap::new(), unnamed: None }
    }

    /// Takes the whole messages out of `said` and writes what is to be said instead; what is begun stays.
    pub(super) fn take(&mut self, said: &mut BytesMut, out: &mut BytesMut) -> Result<(), Error> {
        while let Some((letter, mut body)) = self.whole(said)? {
            match letter {
                None => out.put_slice(&framed(None, &[&body])),
                Some(b'P') => self.parse(text(&mut body)?, body, out),
                Some(b'B') => {
                    let portal = text(&mut body)?;
                    let name = text(&mut body)?;
                    self.recall(&name, out)?;
                    out.put_slice(&framed(Some(b'B'), &[&portal, b"\0\0", &body]));
                }
                Some(b'D') if body.first() == Some(&b'S') => {
                    body.advance(1);
                    let name = text(&mut body)?;
                    self.recall(&name, out)?;
                    out.put_slice(&framed(Some(b'D'), &[b"S\0"]));
                }
                Some(b'C') if body.first() == Some(&b'S') => {
                    // It is no error to close what the server does not have.
                    out.put_slice(&framed(letter, &[&body]));
                    body.advance(1);
                    self.kept.remove(&text(&mut body)?);
                }
                Some(b'Q') if body == BEGIN => {
                    self.unnamed = None;
                    out.put_slice(&framed(letter, &[self.opening.as_bytes(), b"\0"]));
                }
                Some(other) => {
                    // A simple statement takes the unnamed one's place; after Sync another server may answer.
                    if matches!(other, b'Q' | b'S') {
                        self.unnamed = None;
                    }
                    out.put_slice(&framed(letter, &[&body]));
                }
            }
        }
        Ok(())
    }

    fn whole(&mut self, said: &mut BytesMut) -> Result<Option<(Option<u8>, Bytes)>, Error> {
        let letters = usize::from(self.started);
        let Some(head) = said.get(letters..letters + LENGTH_BYTES) else { return Ok(None) };
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if !(LENGTH_BYTES..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(Error::Length { length });
        }
        if said.len() < letters + length {
            return Ok(None);
        }
        let letter = self.started.then(|| said.get_u8());
        self.started = true;
        said.advance(LENGTH_BYTES);
        Ok(Some((letter, said.split_to(length - LENGTH_BYTES).freeze())))
    }

    fn parse(&mut self, name: Bytes, statement: Bytes, out: &mut BytesMut) {
        out.put_slice(&framed(Some(b'P'), &[b"\0", &statement]));
        self.unnamed = None;
        if !name.is_empty() {
            // Copies: a piece of what was read would keep all of it.
            let name = Bytes::copy_from_slice(&name);
            self.unnamed = Some(name.clone());
            self.kept.insert(name, Bytes::copy_from_slice(&statement));
        }
    }

    /// Makes sure that the unnamed statement is the one that is meant.
    fn recall(&mut self, name: &Bytes, out: &mut BytesMut) -> Result<(), Error> {
        if name.is_empty() || self.unnamed.as_ref() == Some(name) {
            return Ok(());
        }
        let unknown = || Error::Unknown { name: String::from_utf8_lossy(name).into_owned() };
        let (name, statement) = self.kept.get_key_value(name).ok_or_else(unknown)?;
        out.put_slice(&framed(Some(b'P'), &[b"\0", statement]));
        self.unnamed = Some(name.clone());
        Ok(())
    }
}

/// A text that ends with a zero byte, taken off.
fn text(body: &mut Bytes) -> Result<Bytes, Error> {
    let end = body.iter().position(|byte| *byte == 0).ok_or(Error::Text)?;
    let text = body.split_to(end);
    body.advance(1);
    Ok(text)
}

fn framed(letter: Option<u8>, parts: &[&[u8]]) -> Vec<u8> {
    let length = LENGTH_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message: Vec<u8> = letter.into_iter().collect();
    // What came in was within MESSAGE_BYTES_MAX, and an opening is some hundred bytes.
    message.extend((length as u32).to_be_bytes());
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

/// What no library of ours says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("a message of {length} bytes")]
    Length { length: usize },
    #[error("a message whose text does not end")]
    Text,
    #[error("no statement is called {name:?}")]
    Unknown { name: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: &str = "BEGIN; SET LOCAL jit = off";

    fn started() -> Rewriter<'static> {
        Rewriter { started: true, ..Rewriter::new(OPENING) }
    }

    fn message(letter: char, body: &[u8]) -> Vec<u8> {
        framed(Some(letter as u8), &[body])
    }

    fn said(rewriter: &mut Rewriter<'_>, messages: &[Vec<u8>]) -> Vec<u8> {
        let (mut input, mut out) = (BytesMut::from(messages.concat().as_slice()), BytesMut::new());
        rewriter.take(&mut input, &mut out).unwrap();
        assert!(input.is_empty());
        out.to_vec()
    }

    fn parse(name: &str, sql: &str) -> Vec<u8> {
        message('P', format!("{name}\0{sql}\0\0\0").as_bytes())
    }

    fn bind(name: &str) -> Vec<u8> {
        message('B', format!("\0{name}\0values").as_bytes())
    }

    fn sync() -> Vec<u8> {
        message('S', b"")
    }

    #[test]
    fn a_named_statement_is_sent_unnamed_and_again_with_each_use_in_a_later_breath() {
        let mut rewriter = started();
        let describe = message('D', b"Ssqlx_s_1\0");
        let first = said(&mut rewriter, &[parse("sqlx_s_1", "SELECT $1"), describe, sync()]);
        assert_eq!(first, [parse("", "SELECT $1"), message('D', b"S\0"), sync()].concat());
        for _ in 0..2 {
            let used = said(&mut rewriter, &[bind("sqlx_s_1"), message('E', b"\0\0\0\0\0"), sync()]);
            assert_eq!(used, [parse("", "SELECT $1"), bind(""), message('E', b"\0\0\0\0\0"), sync()].concat());
        }
    }

    #[test]
    fn within_one_breath_a_statement_is_sent_once_and_another_takes_its_place() {
        let mut rewriter = started();
        said(&mut rewriter, &[parse("a", "A"), parse("b", "B"), sync()]);
        let used = said(&mut rewriter, &[bind("a"), bind("a"), bind("b"), bind("a"), sync()]);
        let want = [parse("", "A"), bind(""), bind(""), parse("", "B"), bind(""), parse("", "A"), bind(""), sync()];
        assert_eq!(used, want.concat());
    }

    #[test]
    fn what_was_closed_is_forgotten_and_its_use_ends_the_connection_rather_than_run_another() {
        let mut rewriter = started();
        let close = message('C', b"Sa\0");
        assert_eq!(said(&mut rewriter, &[parse("a", "A"), close.clone(), sync()]), [parse("", "A"), close, sync()].concat());
        let mut input = BytesMut::from(bind("a").as_slice());
        assert_eq!(rewriter.take(&mut input, &mut BytesMut::new()), Err(Error::Unknown { name: "a".into() }));
    }

    #[test]
    fn a_transaction_begins_with_its_settings_and_other_statements_are_left_alone() {
        let mut rewriter = started();
        assert_eq!(said(&mut rewriter, &[message('Q', b"BEGIN\0")]), message('Q', b"BEGIN; SET LOCAL jit = off\0"));
        for simple in [b"COMMIT\0".as_slice(), b"BEGIN WORK\0", b"SAVEPOINT x\0"] {
            assert_eq!(said(&mut rewriter, &[message('Q', simple)]), message('Q', simple));
        }
    }

    #[test]
    fn however_it_is_cut_the_same_is_said() {
        let startup = framed(None, &[&[0, 3, 0, 0], b"user\0x\0\0"]);
        let portal = message('C', b"P\0");
        let all =
            [startup, message('p', b"password\0"), parse("a", "A"), sync(), bind("a"), portal, sync(), message('X', b"")].concat();
        let whole = said(&mut Rewriter::new(OPENING), std::slice::from_ref(&all));
        for size in 1..all.len() {
            let (mut rewriter, mut input, mut out) = (Rewriter::new(OPENING), BytesMut::new(), BytesMut::new());
            for piece in all.chunks(size) {
                input.extend_from_slice(piece);
                rewriter.take(&mut input, &mut out).unwrap();
            }
            assert_eq!(out, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        for length in [0_u32, 3, u32::MAX] {
            let mut input = BytesMut::from([b"Q".as_slice(), &length.to_be_bytes()].concat().as_slice());
            assert!(matches!(started().take(&mut input, &mut BytesMut::new()), Err(Error::Length { .. })), "{length}");
        }
    }
}
