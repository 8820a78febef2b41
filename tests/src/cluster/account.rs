//! Spokes that act as the account which ships with them, on Kubernetes' own API server: with the rights and under the admission
//! policies of deploy/spoke, and held to the API server's priorities as anybody is. An administrator's requests pass by all of these,
//! so that what they cost is not what an install costs.

use anyhow::{Context as _, Result, bail};
use gpuheal_proto::kubernetes::NAMESPACE;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::ObjectMeta,
};
use serde_json::{Value, json};

use super::{Backend, Cluster, resource_of};
use crate::{script::WITHIN, wait};

/// An install that heals.
const FILES: [(&str, &str); 5] = [
    ("observe.yaml", include_str!("../../../deploy/spoke/observe.yaml")),
    ("admission.yaml", include_str!("../../../deploy/spoke/admission.yaml")),
    ("modes/notify.yaml", include_str!("../../../deploy/spoke/modes/notify.yaml")),
    ("modes/mark.yaml", include_str!("../../../deploy/spoke/modes/mark.yaml")),
    ("modes/heal.yaml", include_str!("../../../deploy/spoke/modes/heal.yaml")),
];
/// Name of the account.
const ACCOUNT: &str = "gpuheal-spoke";
/// Longer than any run.
const TOKEN_S: u32 = 6 * 3600;

impl Cluster {
    /// Has the spokes that are started from now on act as their own account, with what mode heal takes.
    pub async fn act_as_account(&mut self) -> Result<()> {
        for (file, text) in FILES {
            for object in text.split("---\n") {
                let object = serde_saphyr::from_str(object).with_context(|| format!("deploy/spoke/{file}"))?;
                self.apply(object).await.with_context(|| format!("applying deploy/spoke/{file}"))?;
            }
        }
        let token = self.token().await?;
        let Backend::Real(plane) = &self.backend else { bail!("a simulated API server looks at nobody's rights") };
        let file = self.dir.join("kubeconfig-account");
        std::fs::write(&file, plane.kubeconfig_with_token(&token))?;
        // An authoriser goes by a new binding some moments after it was made.
        let account = testkube::connect::connect(&plane.kubeconfig_with_token(&token), "gpuheal-harness").await?;
        wait::until("the account to have its rights", WITHIN, || async {
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes":
                    {"verb": "create", "group": "", "resource": "pods", "subresource": "eviction", "namespace": "", "name": ""}},
            });
            let answer = testkube::raw::post(&account, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await;
            Ok((answer.json["status"]["allowed"] == true).then_some(()))
        })
        .await?;
        self.spokes_kubeconfig = file;
        Ok(())
    }

    async fn apply(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().context("an object has a kind")?;
        let resource = resource_of(&types.api_version, &types.kind);
        let ObjectMeta { name, namespace, .. } = &object.metadata;
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let name = name.as_deref().context("an object has a name")?;
        api.patch(name, &PatchParams::apply("installer").force(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    async fn token(&self) -> Result<String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token");
        let request = json!({"spec": {"audiences": null, "expirationSeconds": TOKEN_S}});
        let answer = testkube::raw::post(&self.client, &path, &request).await;
        let token = answer.json["status"]["token"].as_str();
        token.map(str::to_owned).with_context(|| format!("a token for {ACCOUNT}: {}", answer.text))
    }
}
