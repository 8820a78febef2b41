//! `policy apply` and `policy get`.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use gpuheal_proto::{
    fleet::v1::{ApplyPolicyRequest, GetPolicyRequest, policy_service_client::PolicyServiceClient},
    limits,
};
use tonic::transport::Channel;

use super::Error;
use crate::{args::Policy, output::Printer};

pub(super) async fn call(verb: &Policy, channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    let mut client = PolicyServiceClient::new(channel);
    match verb {
        Policy::Apply { file, dry_run } => {
            let yaml = read(file)?;
            let request = ApplyPolicyRequest { request_id: uuid::Uuid::new_v4().to_string(), yaml, dry_run: *dry_run };
            let answer = client.apply_policy(request).await?.into_inner();
            printer.applied(&answer, file, *dry_run)?;
            Ok(answer.problems.is_empty())
        }
        Policy::Get { revision } => {
            let answer = client.get_policy(GetPolicyRequest { revision: *revision }).await?.into_inner();
            printer.policy(&answer)?;
            Ok(true)
        }
    }
}

/// One byte more than allowed is read, so that the hub and not we say that it is too large.
fn read(path: &Path) -> Result<String, Error> {
    let fail = |source| Error::Read { path: path.display().to_string(), source };
    let bytes_max = limits::POLICY_BYTES_MAX as u64 + 1;
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().take(bytes_max).read_to_string(&mut text)
    } else {
        fs::File::open(path).map_err(fail)?.take(bytes_max).read_to_string(&mut text)
    };
    read.map_err(fail)?;
    Ok(text)
}
