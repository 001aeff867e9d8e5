//! Finds the credentials for a storage account.
//!
//! 1. The file that is named with the location: a connection string, a SAS token or an account key,
//!    as the provider's portal issues them. The content shows which of the three it is.
//! 2. The variables of the provider's own command line: `AZURE_STORAGE_CONNECTION_STRING`, then
//!    `AZURE_STORAGE_KEY`, then `AZURE_STORAGE_SAS_TOKEN`. A connection string and
//!    `AZURE_STORAGE_ACCOUNT` name an account, which has to be the location's.
//! 3. Over https, the identity of this machine or user in Microsoft Entra ([`super::entra`]).

use crate::StoreErrorKind;
use crate::remote::Refusal;
use crate::text::without_mark;
use std::fmt;
use std::path::Path;

/// The variables that are looked at, in this order.
const VARIABLES: [&str; 3] = [
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
];
/// The bytes that are read of a file that should hold one line.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The kind of credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Proof {
    /// The account's key, in base64.
    Key(String),
    /// A shared access signature: a query.
    Token(String),
    /// An identity in Microsoft Entra.
    Identity,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::Token(_) => "Token",
            Self::Identity => "Identity",
        })
    }
}

/// Credentials and their origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AzureCredentials {
    pub(super) proof: Proof,
    /// For messages.
    pub(super) origin: String,
    /// The endpoint of the service, if a connection string has one.
    pub(super) endpoint: Option<String>,
}

fn denied(detail: String) -> Refusal {
    Refusal::new(StoreErrorKind::Denied, detail)
}

/// Finds credentials for `account`.
///
/// # Errors
/// `Denied` if the credentials that are found cannot be used.
pub(super) fn find(
    account: &str,
    file: Option<&Path>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<AzureCredentials, Refusal> {
    if let Some(path) = file {
        let text = read(path)?;
        return parse_credentials(account, &text, &path.display().to_string());
    }
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    for name in VARIABLES {
        let Some(value) = set(name) else { continue };
        if name != "AZURE_STORAGE_CONNECTION_STRING"
            && let Some(named) = set("AZURE_STORAGE_ACCOUNT")
        {
            agree(account, &named, "AZURE_STORAGE_ACCOUNT")?;
        }
        return parse_credentials(account, value.trim(), name);
    }
    Ok(AzureCredentials {
        proof: Proof::Identity,
        origin: "Microsoft Entra".to_owned(),
        endpoint: None,
    })
}

fn read(path: &Path) -> Result<String, Refusal> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| {
        denied(format!(
            "cannot read the credentials {}: {error}",
            path.display()
        ))
    })?;
    Ok(without_mark(&text).trim().to_owned())
}

fn agree(account: &str, named: &str, origin: &str) -> Result<(), Refusal> {
    if named == account {
        return Ok(());
    }
    let detail = format!(
        "the location is in the storage account `{account}`, and {origin} is for another one; \
         name a file with credentials for `{account}` with the location"
    );
    Err(denied(detail))
}

/// Parses a text in one of the three forms.
fn parse_credentials(account: &str, text: &str, origin: &str) -> Result<AzureCredentials, Refusal> {
    let has = |name: &str| {
        let mut parts = text.split(';');
        parts.any(|part| part.trim_start().starts_with(name))
    };
    if has("AccountName=") || has("BlobEndpoint=") || has("DefaultEndpointsProtocol=") {
        return connection_string(account, text, origin);
    }
    let query = text.trim_start_matches('?');
    let proof = if query.split('&').any(|part| part.starts_with("sig=")) {
        Proof::Token(query.to_owned())
    } else if super::signing::SharedKey::new(account, text).is_some() {
        Proof::Key(text.to_owned())
    } else {
        let detail = format!(
            "{origin} is neither a connection string (AccountName=…;AccountKey=…), nor a SAS \
             token (sv=…&sig=…), nor an account key (base64)"
        );
        return Err(denied(detail));
    };
    Ok(AzureCredentials {
        proof,
        origin: origin.to_owned(),
        endpoint: None,
    })
}

fn connection_string(account: &str, text: &str, origin: &str) -> Result<AzureCredentials, Refusal> {
    let value = |wanted: &str| {
        let parts = text
            .split(';')
            .filter_map(|part| part.trim().split_once('='));
        let mut values = parts.filter(|(name, _)| *name == wanted);
        values.next().map(|(_, value)| value.to_owned())
    };
    let endpoint = value("BlobEndpoint");
    match (value("AccountName"), &endpoint) {
        (Some(named), _) => agree(account, &named, origin)?,
        // A connection string with a SAS token has no account name, but its endpoint shows the
        // account.
        (None, Some(endpoint)) => {
            let part = |part: &str| part == account;
            if !endpoint.split(['/', '.', ':']).any(part) {
                agree(account, endpoint, origin)?;
            }
        }
        (None, None) => {}
    }
    let proof = if let Some(key) = value("AccountKey") {
        Proof::Key(key)
    } else if let Some(token) = value("SharedAccessSignature") {
        Proof::Token(token)
    } else {
        let detail = format!("{origin} has neither AccountKey nor SharedAccessSignature");
        return Err(denied(detail));
    };
    let derived = || {
        let suffix = value("EndpointSuffix")?;
        let scheme = value("DefaultEndpointsProtocol").unwrap_or("https".to_owned());
        Some(format!("{scheme}://{account}.blob.{suffix}"))
    };
    Ok(AzureCredentials {
        proof,
        origin: format!("the connection string of {origin}"),
        endpoint: endpoint.clone().or_else(derived),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c2VjcmV0a2V5";

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn from_file(text: &str) -> Result<AzureCredentials, Refusal> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        std::fs::write(&path, text).unwrap();
        find("me", Some(&path), nothing)
    }

    #[test]
    fn a_file_holds_one_of_three_things() {
        let key = Proof::Key(KEY.to_owned());
        assert_eq!(from_file(&format!("{KEY}\n")).unwrap().proof, key);
        let token = from_file("?sv=2025-11-05&ss=b&sig=c2Vj%3D\n").unwrap();
        let wanted = "sv=2025-11-05&ss=b&sig=c2Vj%3D".to_owned();
        assert_eq!(token.proof, Proof::Token(wanted));
        let text = format!(
            "DefaultEndpointsProtocol=https;AccountName=me;AccountKey={KEY};\
             EndpointSuffix=core.chinacloudapi.cn"
        );
        let found = from_file(&text).unwrap();
        assert_eq!(found.proof, key);
        let wanted = "https://me.blob.core.chinacloudapi.cn";
        assert_eq!(found.endpoint.as_deref(), Some(wanted));
        let text = "BlobEndpoint=https://me.blob.core.windows.net/;\
                    SharedAccessSignature=sv=1&sig=2";
        let found = from_file(text).unwrap();
        assert_eq!(found.proof, Proof::Token("sv=1&sig=2".to_owned()));
    }

    #[test]
    fn unusable_credentials_are_named_and_not_shown() {
        for (text, says) in [
            ("AccountName=you;AccountKey=c2VjcmV0;", "another one"),
            ("AccountName=me;", "neither AccountKey"),
            (
                "BlobEndpoint=https://you.example.com;SharedAccessSignature=sig=secret",
                "`me`",
            ),
            ("s e c r e t", "nor an account key"),
            ("", "nor an account key"),
        ] {
            let refusal = from_file(text).unwrap_err();
            assert_eq!(refusal.kind, StoreErrorKind::Denied);
            assert!(refusal.detail.contains(says), "{text}: {refusal}");
            assert!(!refusal.detail.contains("secret") && !refusal.detail.contains("c2Vj"));
            assert!(!refusal.detail.contains("you"), "{refusal}");
        }
        let missing = find("me", Some(Path::new("/nowhere/at/all")), nothing).unwrap_err();
        assert!(missing.detail.contains("/nowhere/at/all"), "{missing}");
    }

    #[test]
    fn variables_come_in_the_order_of_the_providers_own_tools() {
        let find = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            find("me", None, value)
        };
        let string = format!("AccountName=me;AccountKey={KEY}");
        let all = [
            ("AZURE_STORAGE_CONNECTION_STRING", string.as_str()),
            ("AZURE_STORAGE_KEY", "b3RoZXI="),
            ("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=2"),
            ("AZURE_STORAGE_ACCOUNT", "me"),
        ];
        let proof = |set: &[(&str, &str)]| find(set).unwrap().proof;
        assert_eq!(proof(&all), Proof::Key(KEY.to_owned()));
        assert_eq!(proof(&all[1..]), Proof::Key("b3RoZXI=".to_owned()));
        assert_eq!(proof(&all[2..]), Proof::Token("sv=1&sig=2".to_owned()));
        assert_eq!(proof(&all[3..]), Proof::Identity);
        let other = find(&[("AZURE_STORAGE_KEY", KEY), ("AZURE_STORAGE_ACCOUNT", "you")]);
        assert!(other.unwrap_err().detail.contains("another one"));
    }

    #[test]
    fn a_proof_is_not_shown() {
        let found = from_file(&format!("AccountName=me;AccountKey={KEY}")).unwrap();
        assert!(!format!("{found:?}").contains(KEY));
    }
}
