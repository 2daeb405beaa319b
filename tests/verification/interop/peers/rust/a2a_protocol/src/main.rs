//! a2a-protocol (a2a-rust), two ways:
//!
//!     agent --port 9000    an agent
//!     agent cards          signs and verifies cards, by an order on standard input

mod cards;

use a2a_protocol_server::push::HttpPushSender;
use a2a_protocol_server::{
    agent_executor, serve, CombinedDispatcher, EventEmitter, RequestHandlerBuilder,
};
use a2a_protocol_types::{AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TaskState};
use std::sync::Arc;

struct Worker;

agent_executor!(Worker, |ctx, queue| async {
    let emit = EventEmitter::new(ctx, queue);
    if ctx.stored_task.is_none() && ctx.message.text() == Some("wait") {
        return emit.status(TaskState::InputRequired).await; // for a config, and another message
    }
    emit.status(TaskState::Working).await?;
    emit.artifact("result-1", vec![Part::text("héllo <b>&")], None, Some(true)).await?;
    emit.status(TaskState::Completed).await?;
    Ok(())
});

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments[1] == "cards" {
        return cards::answer();
    }
    let at = arguments.iter().position(|name| name == "--port").expect("--port");
    let address = format!("127.0.0.1:{}", arguments[at + 1]);
    let interface = AgentInterface::jsonrpc(&format!("http://{address}"));
    let card = AgentCard::new("Working agent", "1.0.0", interface)
        .with_description("Works.")
        .with_capabilities(AgentCapabilities::none().with_push_notifications(true))
        .with_skill(AgentSkill::new("work", "Work", "Works.").with_tags(["work"]));
    let handler = RequestHandlerBuilder::new(Worker)
        .with_agent_card(card)
        .with_push_sender(HttpPushSender::new().allow_private_urls()) // its guard refuses loopback
        .build()
        .expect("a handler");
    serve(address, CombinedDispatcher::new(Arc::new(handler))).await.expect("to serve");
}
