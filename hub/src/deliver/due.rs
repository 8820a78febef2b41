//! Pure: is a signed command to be sent now? All moments are the database's.
//! Within one session nothing is sent twice on a timer: only a new session or the spoke's own "not now" asks for it again.

use gpuheal_proto::time::Timestamp;

/// A signed command and the session that it would go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its bytes were on a stream before.
    pub dispatched: bool,
    /// No spoke has taken it yet.
    pub awaited: bool,
    /// It only says something.
    pub harmless: bool,
    /// A later plan writes to the same node.
    pub superseded: bool,
    /// It was called off.
    pub cancel: bool,
    /// When the cancellation was last put on a stream.
    pub cancel_sent_at: Option<Timestamp>,
    /// Undelivered by then: dead.
    pub deliver_by: Timestamp,
    /// When it was last put on a stream.
    pub sent_at: Option<Timestamp>,
    /// After a "not now": not before this.
    pub resend_at: Option<Timestamp>,
    /// When the session began, or began to lead if that was later: what was sent before went to another.
    pub attached_at: Timestamp,
}

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send its bytes.
    Send(Why),
    /// Send its cancellation.
    Cancel,
    /// Its time is over: it is never sent again.
    Expired,
    /// A later plan has taken its place: it is never sent again.
    Superseded,
    /// Nothing now.
    Wait,
}

/// Why it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It never was.
    First,
    /// The last time was on a session that is gone.
    NewSession,
    /// The spoke asked to be asked again.
    NotNow,
}

/// Decides. A command that was called off is never sent, its cancellation once per session.
#[must_use]
pub fn due(command: &Command, now: Timestamp) -> Due {
    if command.cancel {
        let told = command.cancel_sent_at.is_some_and(|at| at > command.attached_at);
        return if told { Due::Wait } else { Due::Cancel };
    }
    if !command.awaited {
        return Due::Wait;
    }
    if now > command.deliver_by {
        return Due::Expired;
    }
    if command.superseded && !command.harmless {
        return Due::Superseded;
    }
    match (command.sent_at, command.resend_at) {
        (None, _) => Due::Send(Why::First),
        // In one and the same millisecond, sent twice is better than not at all.
        (Some(sent), _) if sent <= command.attached_at => Due::Send(if command.dispatched { Why::NewSession } else { Why::First }),
        (Some(_), Some(resend)) if now >= resend => Due::Send(Why::NotNow),
        (Some(_), Some(_) | None) => Due::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_ms(seconds * 1000)
    }

    /// Signed, never sent, its session attached at 10, deliverable until 60.
    fn fresh() -> Command {
        Command {
            dispatched: false,
            awaited: true,
            harmless: false,
            superseded: false,
            cancel: false,
            cancel_sent_at: None,
            deliver_by: at(60),
            sent_at: None,
            resend_at: None,
            attached_at: at(10),
        }
    }

    fn sent(second: i64) -> Command {
        Command { dispatched: true, sent_at: Some(at(second)), ..fresh() }
    }

    #[test]
    fn the_table_of_what_is_due() {
        let table = [
            ("never sent", fresh(), 20, Due::Send(Why::First)),
            ("sent on this session", sent(15), 50, Due::Wait),
            ("sent on an earlier session", sent(5), 20, Due::Send(Why::NewSession)),
            ("not now, too early", Command { resend_at: Some(at(30)), ..sent(15) }, 29, Due::Wait),
            ("not now, time to ask again", Command { resend_at: Some(at(30)), ..sent(15) }, 30, Due::Send(Why::NotNow)),
            ("at the last moment", fresh(), 60, Due::Send(Why::First)),
            ("too late", fresh(), 61, Due::Expired),
            ("too late for a new session too", sent(5), 61, Due::Expired),
            ("a later plan writes to the node", Command { superseded: true, ..fresh() }, 20, Due::Superseded),
            ("words are not superseded", Command { superseded: true, harmless: true, ..fresh() }, 20, Due::Send(Why::First)),
            ("taken by a spoke", Command { awaited: false, ..sent(5) }, 20, Due::Wait),
            ("called off", Command { cancel: true, ..fresh() }, 20, Due::Cancel),
            ("called off after it was taken", Command { cancel: true, awaited: false, ..sent(15) }, 100, Due::Cancel),
            ("called off and told", Command { cancel: true, cancel_sent_at: Some(at(12)), ..sent(11) }, 20, Due::Wait),
            (
                "called off, told an earlier session",
                Command { cancel: true, cancel_sent_at: Some(at(9)), ..sent(8) },
                20,
                Due::Cancel,
            ),
        ];
        for (what, command, now, want) in table {
            assert_eq!(due(&command, at(now)), want, "{what}");
        }
    }

    /// Failure table, row 9.
    #[test]
    fn no_moment_past_deliver_by_sends_a_command() {
        for second in 61..200 {
            for command in [fresh(), sent(5), Command { resend_at: Some(at(50)), ..sent(15) }] {
                assert!(!matches!(due(&command, at(second)), Due::Send(_)));
            }
        }
    }
}
