//! People's requests that wait for the hub's answer. However many ask the same, the hub is asked once and its answer goes
//! to all of them; a request that was not answered in one session is asked again in the next. Knows no socket.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use gpuheal_proto::link::v1;
use tokio::sync::oneshot;

use super::Ask;

/// Callers that wait at once, over all requests: twice the connections that the HTTP server takes. One more is told that
/// there was no answer, and asks again.
pub(super) const WAITERS_MAX: usize = 1024;

type Reply = oneshot::Sender<v1::ProcessResult>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: Mutex<BTreeMap<String, Request>>,
}

#[derive(Debug)]
struct Request {
    process: v1::Process,
    replies: Vec<Reply>,
}

impl Request {
    /// Whether it asks for the same thing. Who asks and in which words may differ.
    fn is(&self, process: &v1::Process) -> bool {
        (&self.process.node, self.process.action) == (&process.node, process.action)
    }
}

impl Waiting {
    /// Takes a caller in. Gives what is to be sent to the hub: nothing when the same was asked and is not answered yet.
    pub(super) fn ask(&self, ask: Ask) -> Option<v1::Process> {
        let Ask { process, reply } = ask;
        let mut requests = self.lock();
        forget_the_gone(&mut requests);
        if requests.values().map(|request| request.replies.len()).sum::<usize>() >= WAITERS_MAX {
            return None;
        }
        match requests.get_mut(&process.request_id) {
            Some(asked) if asked.is(&process) => {
                asked.replies.push(reply);
                None
            }
            Some(asked) => {
                // Whoever asked may have gone.
                let _ = reply.send(used_for_another(&asked.process));
                None
            }
            None => {
                requests.insert(process.request_id.clone(), Request { process: process.clone(), replies: vec![reply] });
                Some(process)
            }
        }
    }

    /// Hands the hub's answer to everybody who asked for it.
    pub(super) fn answered(&self, result: &v1::ProcessResult) {
        let request = self.lock().remove(&result.request_id);
        for reply in request.into_iter().flat_map(|request| request.replies) {
            // Whoever asked may have gone.
            let _ = reply.send(result.clone());
        }
    }

    /// What a new session is to ask again: the hub knows it by its id, if it has heard of it at all.
    pub(super) fn unanswered(&self) -> Vec<v1::Process> {
        let mut requests = self.lock();
        forget_the_gone(&mut requests);
        requests.values().map(|request| request.process.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Request>> {
        self.requests.lock().expect("no holder of this lock panics")
    }
}

/// Those who gave up waiting, and what nobody waits for any more.
fn forget_the_gone(requests: &mut BTreeMap<String, Request>) {
    requests.retain(|_, request| {
        request.replies.retain(|reply| !reply.is_closed());
        !request.replies.is_empty()
    });
}

/// What the hub would say of a key that names another request.
fn used_for_another(before: &v1::Process) -> v1::ProcessResult {
    let reason = format!("request_id: {} is in use by a request about node {}", before.request_id, before.node);
    v1::ProcessResult {
        request_id: before.request_id.clone(),
        outcome: v1::ProcessOutcome::Invalid.into(),
        reason,
        ..v1::ProcessResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(id: &str, node: &str) -> (Ask, oneshot::Receiver<v1::ProcessResult>) {
        let (reply, answer) = oneshot::channel();
        (Ask { process: v1::Process { request_id: id.into(), node: node.into(), ..Default::default() }, reply }, answer)
    }

    #[test]
    fn one_key_for_two_nodes_is_refused_and_the_first_keeps_its_place() {
        let waiting = Waiting::default();
        let (first, mut answer) = ask("k", "n1");
        let (other, mut refused) = ask("k", "n2");
        assert!(waiting.ask(first).is_some());
        assert!(waiting.ask(other).is_none());
        assert_eq!(refused.try_recv().unwrap().outcome(), v1::ProcessOutcome::Invalid);
        let result = v1::ProcessResult { request_id: "k".into(), command_id: "c".into(), ..Default::default() };
        waiting.answered(&result);
        assert_eq!(answer.try_recv().unwrap(), result);
    }

    #[test]
    fn callers_are_bounded_and_those_who_gave_up_make_room_and_are_not_asked_for_again() {
        let waiting = Waiting::default();
        let mut answers = Vec::new();
        for n in 0..WAITERS_MAX {
            let (asked, answer) = ask(&format!("k{}", n % 7), "n1");
            waiting.ask(asked);
            answers.push(answer);
        }
        assert_eq!(waiting.unanswered().len(), 7);
        let (one_more, mut none) = ask("k0", "n1");
        assert!(waiting.ask(one_more).is_none());
        assert!(none.try_recv().is_err(), "dropped, so that the caller asks again");
        drop(answers);
        assert_eq!(waiting.unanswered(), []);
        let (again, _answer) = ask("k0", "n1");
        assert!(waiting.ask(again).is_some());
    }
}
