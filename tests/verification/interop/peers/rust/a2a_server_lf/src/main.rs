//! An agent on a2a-server-lf: agent --port 9000.

use a2a::*;
use a2a_server::{
    AgentExecutor, DefaultRequestHandler, ExecutorContext, HttpPushSender, HttpPushSenderConfig,
    InMemoryPushConfigStore, InMemoryTaskStore,
};
use futures::stream::{self, BoxStream, StreamExt};
use std::sync::Arc;

struct Worker;

fn status(state: TaskState) -> TaskStatus {
    TaskStatus { state, message: None, timestamp: Some(chrono::Utc::now()) }
}

impl AgentExecutor for Worker {
    fn execute(&self, ctx: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        let (task_id, context_id) = ctx.task_info();
        let update = |state| {
            StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                task_id: task_id.clone(),
                context_id: context_id.clone(),
                status: status(state),
                metadata: None,
            })
        };
        let first = StreamResponse::Task(Task {
            id: task_id.clone(),
            context_id: context_id.clone(),
            status: status(TaskState::Submitted),
            artifacts: None,
            history: ctx.message.clone().map(|message| vec![message]),
            metadata: None,
        });
        // A stored task is there from the first message on: what tells is its text.
        let text = ctx.message.as_ref().and_then(Message::text);
        let begins = text != Some("go on");
        if text == Some("wait") {
            // for a config, and another message
            let events = vec![first, update(TaskState::InputRequired)];
            return stream::iter(events.into_iter().map(Ok)).boxed();
        }
        let rest = vec![
            update(TaskState::Working),
            StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task_id.clone(),
                context_id: context_id.clone(),
                artifact: Artifact {
                    artifact_id: "result-1".into(),
                    name: None,
                    description: None,
                    parts: vec![Part::text("héllo <b>&")],
                    metadata: None,
                    extensions: None,
                },
                append: None,
                last_chunk: Some(true),
                metadata: None,
            }),
            update(TaskState::Completed),
        ];
        let events = begins.then_some(first).into_iter().chain(rest);
        stream::iter(events.map(Ok).collect::<Vec<_>>()).boxed()
    }

    fn cancel(&self, _: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        stream::empty().boxed()
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|name| name == "--port").expect("--port");
    // Its guard refuses loopback.
    let sender = HttpPushSender::new(Some(HttpPushSenderConfig {
        validate_urls: false,
        ..Default::default()
    }));
    let handler = DefaultRequestHandler::new(Worker, InMemoryTaskStore::new())
        .with_push_notifications(InMemoryPushConfigStore::new(), sender);
    let address = format!("127.0.0.1:{}", arguments[at + 1]);
    let listener = tokio::net::TcpListener::bind(address).await.expect("the port");
    let handler = Arc::new(handler);
    let app = a2a_server::jsonrpc::jsonrpc_router(handler.clone())
        .merge(a2a_server::rest::rest_router(handler));
    axum::serve(listener, app).await.expect("to serve");
}
