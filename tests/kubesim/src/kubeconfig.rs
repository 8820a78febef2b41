//! Pure: the kubeconfig that leads a client to a simulated cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub(crate) struct Access<'a> {
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    pub(crate) ca_pem: &'a str,
    pub(crate) token: &'a str,
}

impl Access<'_> {
    pub(crate) fn yaml(&self) -> String {
        let ca = STANDARD.encode(self.ca_pem);
        let Self { name, url, token, .. } = self;
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}\n\
             clusters:\n- name: {name}\n  cluster:\n    server: {url}\n    certificate-authority-data: {ca}\n\
             users:\n- name: {name}\n  user:\n    token: {token}\n\
             contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n"
        )
    }
}
