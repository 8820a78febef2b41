//! Server TLS: TLS 1.3, client certificates required on the link.
