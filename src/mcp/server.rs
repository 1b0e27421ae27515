//! The handler: what each request of a client gets.
//!
//! Rule: the list of tools is the same for everyone and always; whatever goes wrong in a tool is a result
//! that the model reads, and only a request that can't be routed is a protocol error.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, DiscoverResult, ErrorCode, Implementation, InitializeRequestParams,
    InitializeResult, JsonObject, ListToolsResult, MetaObject, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::elicit::{self, Brought, Elicit, Seals};
use super::progress::{Pulse, tell_while};
use super::{Channel, Config, ServeError, codex};
use crate::approval::queue::{self, Queue, Queued};
use crate::approval::terminal::{self, Terminal};
use crate::approval::{Answer, Answerer, Chain, Question};
use crate::executor::Watch;
use crate::mode::Mode;
use crate::session::Session;
use crate::tools::{Call, CallResult, Code, Definition, Tools};

/// The machine's copy of a result, in its `_meta`.
const RESULT: &str = "cofferdam/result";
/// The card of a result, in its `_meta`.
const CARD: &str = "cofferdam/card";

/// One server; clones are the same one.
#[derive(Clone)]
pub(super) struct Server(Arc<Parts>);

struct Parts {
    config: Config,
    tools: Tools,
    session: Arc<Session>,
    calls: CancellationToken,
    seals: Arc<Seals>,
    queue: Option<Arc<Queue>>,
    /// Tasks whose end a result has shown, and whose notice may still be under way.
    shown: Mutex<HashSet<String>>,
}

impl Server {
    /// Cancelling `calls` aborts every running call.
    pub(super) fn new(
        config: Config,
        tools: Tools,
        session: Arc<Session>,
        calls: CancellationToken,
    ) -> Result<Server, ServeError> {
        let queue = config
            .run_dir
            .clone()
            .map(|dir| Arc::new(Queue::new(dir, queue::PATIENCE)));
        Ok(Server(Arc::new(Parts {
            seals: Arc::new(Seals::new(elicit::PATIENCE)?),
            config,
            tools,
            session,
            calls,
            queue,
            shown: Mutex::default(),
        })))
    }

    /// The sections of the prompt, which also tells the mode where that is announced.
    fn instructions(&self) -> Option<String> {
        let parts = &self.0;
        match parts.tools.prompt_sections(Some(&parts.session)) {
            Ok(mut sections) => {
                sections.sort_by_key(|section| section.order);
                let texts: Vec<String> = sections.into_iter().map(|section| section.text).collect();
                Some(texts.join("\n\n"))
            }
            Err(error) => {
                tracing::warn!(%error, "the prompt can't be made");
                None
            }
        }
    }

    /// The client has the instructions, so the mode that they state counts as told.
    fn instructions_were_given(&self) {
        if let Err(error) = self.0.tools.narrate(&self.0.session) {
            tracing::warn!(%error, "the told mode isn't on record");
        }
    }

    /// Who answers an escalation of this call.
    fn approvals(&self, elicit: &Arc<Elicit>, pulse: &Arc<Pulse>) -> Arc<dyn Answerer> {
        let mut chain: Vec<Arc<dyn Answerer>> = Vec::new();
        for channel in &self.0.config.channels {
            match channel {
                Channel::Elicit => chain.push(elicit.clone()),
                Channel::Queue => {
                    if let Some(queue) = &self.0.queue {
                        let pulse = pulse.clone();
                        chain.push(Arc::new(Queued::new(queue.clone(), move |question| {
                            tracing::warn!(
                                "an escalation waits: cofferdam approve {id}, or cofferdam reject {id}",
                                id = question.id
                            );
                            pulse.waits_for(Some(format!(
                                "an approval: cofferdam approve {}",
                                question.id
                            )));
                        })));
                    }
                }
                Channel::Terminal => chain.push(Arc::new(Terminal {
                    patience: terminal::PATIENCE,
                })),
                Channel::Never => break,
            }
        }
        Arc::new(Waiting {
            chain: Chain::new(chain),
            pulse: pulse.clone(),
        })
    }

    /// What the client's own policy leaves, if it sent one.
    fn ceiling(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<Mode>, codex::Exceeds> {
        let state = context.meta.0.0.get(codex::SANDBOX_STATE);
        state
            .map(|state| codex::ceiling(state, &self.0.config.ours, &canonical))
            .transpose()
    }

    /// The content blocks of a result: its text, then what else the model should hear of now.
    fn content(&self, result: &CallResult) -> Vec<ContentBlock> {
        let mut blocks = vec![ContentBlock::text(result.text.clone())];
        let mut shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task_whose_end_is_shown(result) {
            shown.insert(task);
        }
        for notice in self.0.session.take_notices() {
            let known = shown
                .iter()
                .find(|task| is_notice_of(&notice, task))
                .cloned();
            match known {
                Some(task) => {
                    shown.remove(&task);
                }
                None => blocks.push(ContentBlock::text(notice)),
            }
        }
        match self.0.tools.narrate(&self.0.session) {
            Ok(change) => blocks.extend(change.map(ContentBlock::text)),
            Err(error) => tracing::warn!(%error, "a change of the mode can't be told"),
        }
        blocks
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder().enable_tools().build();
        capabilities.experimental = Some(
            [(codex::SANDBOX_STATE.to_owned(), JsonObject::new())]
                .into_iter()
                .collect(),
        );
        let mut info = ServerConfig::new(capabilities).with_server_info(
            Implementation::new("cofferdam", env!("CARGO_PKG_VERSION")).with_title("Cofferdam"),
        );
        info.instructions = self.instructions();
        info
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let result = self.negotiate_initialize(&request)?;
        self.instructions_were_given();
        Ok(result)
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        let result = DiscoverResult::from_server_info(
            self.supported_protocol_versions().into_owned(),
            self.get_info(),
        );
        self.instructions_were_given();
        Ok(result)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.0.tools.definitions().iter().map(listed).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parts = &self.0;
        if !is_known(parts.tools.definitions(), &request.name) {
            let message = format!("unknown tool \"{}\"", request.name);
            return Err(ErrorData::invalid_params(message, None));
        }
        let ceiling = match self.ceiling(&context) {
            Ok(ceiling) => ceiling,
            Err(exceeds) if request.name == "bash" => {
                return Ok(self.answered(exceeding(&exceeds)).into());
            }
            // Tasks that were started before are still there to be read and killed.
            Err(_) => None,
        };
        let brought = Brought {
            responses: request.input_responses,
            state: request.request_state,
        };
        let elicit = Arc::new(Elicit::new(&context, &parts.seals, brought));
        let pulse = Arc::new(Pulse::default());
        if request.name == "bash_output" {
            pulse.waits_for(Some("output".to_owned()));
        }
        let abort = parts.calls.child_token();
        // A handler that is dropped takes its command along.
        let _dropped = abort.clone().drop_guard();
        let call = Call {
            session: Some(parts.session.clone()),
            watch: Watch {
                live: Some(pulse.clone()),
                abort: abort.clone(),
                yield_after: parts.config.yield_after,
            },
            approvals: Some(self.approvals(&elicit, &pulse)),
            ceiling,
        };
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let running = parts.tools.call(&request.name, &arguments, call);
        let told = tell_while(
            &context.peer,
            context.meta.get_progress_token(),
            &pulse,
            running,
        );
        let mut told = std::pin::pin!(told);
        let result = tokio::select! {
            result = &mut told => result,
            () = context.ct.cancelled() => {
                abort.cancel();
                // Nobody waits for the answer, but the command must be gone before this call is.
                return Ok(CallToolResult::error(vec![ContentBlock::text(told.await.text)]).into());
            }
        };
        if result.code == Some(Code::ApprovalDeferred)
            && let Some(required) = elicit.take_required()
        {
            return Ok(required.into());
        }
        Ok(self.answered(result).into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // A known method comes this way when its parameters can't be read.
        if ["initialize", "server/discover", "tools/list", "tools/call"]
            .contains(&request.method.as_str())
        {
            let message = format!("malformed parameters for {}", request.method);
            return Err(ErrorData::invalid_params(message, None));
        }
        let message = format!("unknown method \"{}\"", request.method);
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
    }
}

impl Server {
    fn answered(&self, result: CallResult) -> CallToolResult {
        let content = self.content(&result);
        let mut answered = if result.is_error {
            CallToolResult::error(content)
        } else {
            CallToolResult::success(content)
        };
        let meta = [
            (RESULT.to_owned(), result.structured.clone()),
            (CARD.to_owned(), result.card),
        ];
        answered.meta = Some(MetaObject(meta.into_iter().collect()));
        if self.0.config.structured {
            answered.structured_content = Some(result.structured);
        }
        answered
    }
}

/// Says in the progress messages that an answer is waited for.
struct Waiting {
    chain: Chain,
    pulse: Arc<Pulse>,
}

#[async_trait]
impl Answerer for Waiting {
    async fn ask(&self, question: &Question) -> Answer {
        self.pulse.waits_for(Some("an approval".to_owned()));
        let answer = self.chain.ask(question).await;
        self.pulse.waits_for(None);
        answer
    }
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The result of a command that would exceed the client's own policy in any mode.
fn exceeding(exceeds: &codex::Exceeds) -> CallResult {
    let text = exceeds.to_string();
    CallResult {
        structured: json!({"error": {
            "code": "CLIENT_POLICY", "message": text, "step": null, "errno": null, "remedy": "",
        }}),
        card: json!({"card": "generic", "content": [text]}),
        text,
        is_error: true,
        code: None,
    }
}

fn is_known(definitions: &[Definition], name: &str) -> bool {
    definitions.iter().any(|tool| tool.name == name)
}

fn listed(definition: &Definition) -> Tool {
    let schema = definition.input_schema();
    let schema = schema.as_object().cloned().unwrap_or_default();
    let hints = &definition.annotations;
    let mut tool = Tool::new(definition.name, definition.description.clone(), schema);
    tool.title = Some(hints.title.to_owned());
    tool.annotations = Some(
        ToolAnnotations::with_title(hints.title)
            .read_only(hints.read_only)
            .destructive(hints.destructive)
            .idempotent(hints.idempotent)
            .open_world(hints.open_world),
    );
    let meta = [("anthropic/alwaysLoad".to_owned(), json!(true))];
    tool.meta = Some(MetaObject(meta.into_iter().collect()));
    tool
}

/// The task of a read that found it settled, or of a kill.
fn task_whose_end_is_shown(result: &CallResult) -> Option<String> {
    let field = |name| result.structured.get(name);
    let settled = match field("status").and_then(Value::as_str) {
        Some(status) => status != "running",
        None => field("killed").is_some(),
    };
    let task = field("task")?.as_str()?;
    settled.then(|| task.to_owned())
}

fn is_notice_of(notice: &str, task: &str) -> bool {
    notice.starts_with(&format!("background bash task {task} finished "))
}
