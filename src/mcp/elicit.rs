//! Asking the person behind the client, in both eras of the protocol.
//!
//! Rule: only a client that declares forms is asked; only an accepted form with the one word `allow once`
//! allows. In the era without server requests the question travels with a state that is sealed, bound
//! to everything that the question names, expires, and is redeemed once.
//!
//! An answer is no proof of a person: hooks and full-access modes answer by themselves. So the record says
//! which client answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rmcp::RoleServer;
use rmcp::model::{
    CancelledNotificationParam, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, EnumSchema, InputRequest, InputRequiredResult,
    InputResponses, ProtocolVersion, RequestId, RequestStateCodec, SealOptions, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestContext};

use crate::approval::{Answer, Answerer, Question};

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The field of the form.
const FIELD: &str = "decision";
/// The choice that the form starts with.
const REJECT: &str = "reject";
/// The only grant.
const ALLOW_ONCE: &str = "allow once";
/// The name of the question among the inputs that a call requires.
const INPUT: &str = "approval";

/// Characters of a client's name that go on record.
const MAX_NAME: usize = 200;

/// Questions that may be out at once; the oldest are forgotten first.
const MAX_OUT: usize = 1024;

/// Seals questions that travel with the client, and redeems each one once.
pub struct Seals {
    codec: RequestStateCodec,
    out: Mutex<HashMap<Vec<u8>, Instant>>,
    lifetime: Duration,
}

impl Seals {
    /// With a key that lives and dies with this process; a seal holds for `lifetime`.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn new(lifetime: Duration) -> Result<Seals, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Seals {
            codec: RequestStateCodec::new_unchecked(key),
            out: Mutex::default(),
            lifetime,
        })
    }

    fn seal(&self, binding: &[u8]) -> Result<String, getrandom::Error> {
        let mut nonce = vec![0; 16];
        getrandom::fill(&mut nonce)?;
        let options = SealOptions::new()
            .associated_data(binding)
            .ttl(self.lifetime);
        let sealed = self.codec.seal_with(&nonce, &options);
        let now = Instant::now();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.retain(|_, asked| now.duration_since(*asked) < self.lifetime);
        while out.len() >= MAX_OUT {
            let Some(oldest) = out.iter().min_by_key(|(_, asked)| **asked) else {
                break;
            };
            let oldest = oldest.0.clone();
            out.remove(&oldest);
        }
        out.insert(nonce, now);
        Ok(sealed)
    }

    /// Whether `sealed` is one of ours for exactly this, unexpired and not redeemed before.
    fn redeem(&self, sealed: &str, binding: &[u8]) -> bool {
        match self.codec.open_with(sealed, binding) {
            Ok(nonce) => self
                .out
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&nonce)
                .is_some_and(|asked| asked.elapsed() < self.lifetime),
            Err(error) => {
                tracing::info!(%error, "a request state isn't redeemed");
                false
            }
        }
    }
}

/// What a client brought along with a call that it makes again.
#[derive(Clone, Debug, Default)]
pub struct Brought {
    /// Its answers.
    pub responses: Option<InputResponses>,
    /// The state that came with the question.
    pub state: Option<String>,
}

/// The answerer of one call.
pub struct Elicit {
    client: String,
    way: Way,
}

enum Way {
    /// The client declares no forms, or its revision knows none.
    None,
    /// A request from the server.
    Request(Peer<RoleServer>),
    /// A result that requires input, and the call made again.
    Retry {
        seals: Arc<Seals>,
        brought: Mutex<Brought>,
        required: Mutex<Option<InputRequiredResult>>,
    },
}

impl Elicit {
    /// For the call that came in `context` with what it `brought`.
    pub fn new(
        context: &RequestContext<RoleServer>,
        seals: &Arc<Seals>,
        brought: Brought,
    ) -> Elicit {
        let client = context.client_info().map_or_else(
            || "an MCP client without a name".to_owned(),
            |info| format!("MCP client {} {}", info.name, info.version),
        );
        let takes_forms = context
            .client_capabilities()
            .and_then(|capabilities| capabilities.elicitation)
            // A capability without members is one for forms.
            .is_some_and(|elicitation| elicitation.form.is_some() || elicitation.url.is_none());
        let version = context.protocol_version();
        let since = |first: ProtocolVersion| {
            version
                .as_ref()
                .is_some_and(|version| version.as_str() >= first.as_str())
        };
        let way = if !takes_forms || !since(ProtocolVersion::V_2025_06_18) {
            Way::None
        } else if since(ProtocolVersion::V_2026_07_28) {
            Way::Retry {
                seals: seals.clone(),
                brought: Mutex::new(brought),
                required: Mutex::default(),
            }
        } else {
            Way::Request(context.peer.clone())
        };
        Elicit {
            client: crate::approval::visible_line(&client)
                .chars()
                .take(MAX_NAME)
                .collect(),
            way,
        }
    }

    /// The result to give instead of the call's own when the answer was [`Answer::Deferred`].
    pub fn take_required(&self) -> Option<InputRequiredResult> {
        match &self.way {
            Way::Retry { required, .. } => required
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
            Way::None | Way::Request(_) => None,
        }
    }
}

#[async_trait]
impl Answerer for Elicit {
    async fn ask(&self, question: &Question) -> Answer {
        let by = self.client.clone();
        match &self.way {
            Way::None => Answer::Unavailable,
            Way::Request(peer) => match request(peer, question).await {
                Some(result) => answer(&result, by),
                None => Answer::Unavailable,
            },
            Way::Retry {
                seals,
                brought,
                required,
            } => {
                let brought =
                    std::mem::take(&mut *brought.lock().unwrap_or_else(PoisonError::into_inner));
                if let Brought {
                    responses: Some(responses),
                    state: Some(state),
                } = brought
                    && seals.redeem(&state, &question.binding())
                {
                    return match responses.get(INPUT).cloned().map(serde_json::from_value) {
                        Some(Ok(result)) => answer(&result, by),
                        Some(Err(_)) | None => Answer::Cancelled { by },
                    };
                }
                match seals.seal(&question.binding()) {
                    Ok(state) => {
                        let input = InputRequest::Elicitation(ElicitRequest::new(form(question)));
                        let inputs = BTreeMap::from([(INPUT.to_owned(), input)]);
                        *required.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(InputRequiredResult::new(Some(inputs), Some(state)));
                        Answer::Deferred { by }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a question can't be sealed");
                        Answer::Unavailable
                    }
                }
            }
        }
    }
}

fn answer(result: &ElicitResult, by: String) -> Answer {
    match result.action {
        ElicitationAction::Accept => {
            let decision = result
                .content
                .as_ref()
                .and_then(|content| content.get(FIELD));
            if decision.and_then(serde_json::Value::as_str) == Some(ALLOW_ONCE) {
                Answer::AllowedOnce { by }
            } else {
                Answer::Rejected { by }
            }
        }
        ElicitationAction::Decline => Answer::Rejected { by },
        // Also what a later revision may add.
        ElicitationAction::Cancel | _ => Answer::Cancelled { by },
    }
}

fn form(question: &Question) -> ElicitRequestParams {
    let choices = EnumSchema::builder(vec![REJECT.to_owned(), ALLOW_ONCE.to_owned()])
        .title("Decision")
        .with_default(REJECT)
        .map(|builder| builder.build());
    let mut schema = ElicitationSchema::builder();
    if let Ok(choices) = choices {
        schema = schema.required_enum_schema(FIELD, choices);
    }
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: question.text(),
        requested_schema: schema.build_unchecked(),
    }
}

/// Sends the question as a request of ours. `None` when the client can't be asked after all.
async fn request(peer: &Peer<RoleServer>, question: &Question) -> Option<ElicitResult> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(question)));
    let sent = peer
        .send_cancellable_request(request, PeerRequestOptions::with_timeout(PATIENCE))
        .await;
    let handle = match sent {
        Ok(handle) => handle,
        Err(error) => {
            tracing::info!(%error, "the client can't be asked");
            return None;
        }
    };
    let mut withdraw = Withdraw {
        peer: peer.clone(),
        id: Some(handle.id.clone()),
    };
    let answered = handle.await_response().await;
    withdraw.id = None;
    match answered {
        Ok(ClientResult::ElicitResult(result)) => Some(result),
        Ok(_) => Some(ElicitResult::new(ElicitationAction::Cancel)),
        Err(rmcp::ServiceError::McpError(error)) => {
            tracing::info!(%error, "the client refused to ask");
            None
        }
        Err(error) => {
            tracing::info!(%error, "the question got no answer");
            Some(ElicitResult::new(ElicitationAction::Cancel))
        }
    }
}

/// Tells the client that a question is no longer needed when its call ends before the answer.
struct Withdraw {
    peer: Peer<RoleServer>,
    id: Option<RequestId>,
}

impl Drop for Withdraw {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let peer = self.peer.clone();
            runtime.spawn(async move {
                let cancelled = CancelledNotificationParam::new(
                    Some(id),
                    Some("the call has ended".to_owned()),
                );
                if let Err(error) = peer.notify_cancelled(cancelled).await {
                    tracing::debug!(%error, "a question can't be withdrawn");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_redeemed_once_and_for_nothing_else() {
        let seals = Seals::new(PATIENCE).unwrap();
        let sealed = seals.seal(b"rm build in /w").unwrap();
        assert!(!seals.redeem(&sealed, b"rm -rf / in /w"));
        assert!(seals.redeem(&sealed, b"rm build in /w"));
        assert!(!seals.redeem(&sealed, b"rm build in /w"));
    }

    #[test]
    fn a_seal_of_another_process_a_broken_one_and_an_old_one_are_not_redeemed() {
        let seals = Seals::new(PATIENCE).unwrap();
        let foreign = Seals::new(PATIENCE).unwrap().seal(b"x").unwrap();
        assert!(!seals.redeem(&foreign, b"x"));
        let ours = seals.seal(b"x").unwrap();
        assert!(!seals.redeem(&ours[..ours.len() - 1], b"x"));
        assert!(!seals.redeem("", b"x"));
        assert!(seals.redeem(&ours, b"x"));
        let short = Seals::new(Duration::from_millis(20)).unwrap();
        let old = short.seal(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(40));
        assert!(!short.redeem(&old, b"x"));
    }

    #[test]
    fn the_oldest_questions_are_forgotten_first() {
        let seals = Seals::new(PATIENCE).unwrap();
        let first = seals.seal(b"x").unwrap();
        for _ in 0..MAX_OUT {
            seals.seal(b"y").unwrap();
        }
        let last = seals.seal(b"x").unwrap();
        assert!(!seals.redeem(&first, b"x"));
        assert!(seals.redeem(&last, b"x"));
    }

    #[test]
    fn only_an_accepted_allow_once_allows() {
        use serde_json::json;
        let by = || "c".to_owned();
        let accept = |content| ElicitResult::new(ElicitationAction::Accept).with_content(content);
        assert_eq!(
            answer(&accept(json!({"decision": "allow once"})), by()),
            Answer::AllowedOnce { by: by() }
        );
        for content in [
            json!({"decision": "reject"}),
            json!({"decision": "Allow once"}),
            json!({"decision": true}),
            json!({"decision": ["allow once"]}),
            json!({}),
            json!("allow once"),
            json!(null),
        ] {
            assert_eq!(
                answer(&accept(content), by()),
                Answer::Rejected { by: by() }
            );
        }
        let bare = |action| answer(&ElicitResult::new(action), by());
        assert_eq!(
            bare(ElicitationAction::Accept),
            Answer::Rejected { by: by() }
        );
        assert_eq!(
            bare(ElicitationAction::Decline),
            Answer::Rejected { by: by() }
        );
        assert_eq!(
            bare(ElicitationAction::Cancel),
            Answer::Cancelled { by: by() }
        );
    }
}
