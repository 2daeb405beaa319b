import com.fasterxml.jackson.databind.JsonNode;
import com.sun.net.httpserver.HttpServer;
import io.a2a.server.AgentCardValidator;
import io.a2a.server.ServerCallContext;
import io.a2a.server.agentexecution.AgentExecutor;
import io.a2a.server.agentexecution.RequestContext;
import io.a2a.server.auth.UnauthenticatedUser;
import io.a2a.server.events.EventQueue;
import io.a2a.server.events.InMemoryQueueManager;
import io.a2a.server.requesthandlers.DefaultRequestHandler;
import io.a2a.server.tasks.BasePushNotificationSender;
import io.a2a.server.tasks.InMemoryPushNotificationConfigStore;
import io.a2a.server.tasks.InMemoryTaskStore;
import io.a2a.server.tasks.TaskUpdater;
import io.a2a.spec.AgentCapabilities;
import io.a2a.spec.AgentCard;
import io.a2a.spec.GetTaskPushNotificationConfigRequest;
import io.a2a.spec.GetTaskRequest;
import io.a2a.spec.SendMessageRequest;
import io.a2a.spec.SendStreamingMessageRequest;
import io.a2a.spec.SetTaskPushNotificationConfigRequest;
import io.a2a.spec.Task;
import io.a2a.spec.TaskResubscriptionRequest;
import io.a2a.spec.TaskState;
import io.a2a.spec.TaskStatus;
import io.a2a.spec.TextPart;
import io.a2a.transport.jsonrpc.handler.JSONRPCHandler;
import io.a2a.transport.rest.handler.RestHandler;
import io.a2a.util.Utils;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Flow;

/**
 * An agent on a2a-java 0.3, behind the JDK's own server: java Main --port 9000; with --sender none,
 * for a gateway in front.
 */
final class Main {
  private record Worker(Path folder) implements AgentExecutor {
    @Override
    public void execute(RequestContext context, EventQueue queue) {
      TaskUpdater updater = new TaskUpdater(context, queue);
      if (context.getUserInput("").equals("a status first")) {
        updater.submit();
      } else if (context.getTask() == null) {
        // It keeps the push config of a stream when a task comes, not when a status does.
        queue.enqueueEvent(new Task.Builder()
            .id(context.getTaskId()).contextId(context.getContextId())
            .status(new TaskStatus(TaskState.SUBMITTED)).history(context.getMessage())
            .build());
        if (context.getUserInput("").equals("wait")) { // for a config, and another message
          updater.requiresInput(true);
          return;
        }
      }
      updater.startWork();
      released();
      updater.addArtifact(List.of(new TextPart("héllo <b>&")));
      updater.complete();
    }

    /** Returns once there is no file `hold` in the folder: work takes as long as a test wants. */
    private void released() {
      while (Files.exists(folder.resolve("hold"))) {
        try {
          Thread.sleep(20);
        } catch (InterruptedException e) {
          return;
        }
      }
    }

    @Override
    public void cancel(RequestContext context, EventQueue queue) {
      new TaskUpdater(context, queue).cancel();
    }
  }

  public static void main(String[] arguments) throws Exception {
    List<String> given = List.of(arguments);
    int port = Integer.parseInt(given.get(given.indexOf("--port") + 1));
    boolean pushes = !given.contains("none");
    Path folder = Path.of(given.contains("--folder") ? given.get(given.indexOf("--folder") + 1) : "");
    AgentCard card = new AgentCard.Builder()
        .name("Working agent").description("Works.").version("1.0.0")
        .url("http://127.0.0.1:" + port + "/")
        .capabilities(new AgentCapabilities.Builder()
            .pushNotifications(pushes).streaming(true).build())
        .defaultInputModes(List.of("text/plain")).defaultOutputModes(List.of("text/plain"))
        .skills(List.of())
        .build();
    // What it looks for is its server on Quarkus.
    System.setProperty(AgentCardValidator.SKIP_PROPERTY, "true");
    ExecutorService threads = Executors.newCachedThreadPool();
    InMemoryTaskStore tasks = new InMemoryTaskStore();
    InMemoryPushNotificationConfigStore configs = new InMemoryPushNotificationConfigStore();
    DefaultRequestHandler works = DefaultRequestHandler.create(new Worker(folder), tasks,
        new InMemoryQueueManager(tasks), pushes ? configs : null,
        pushes ? new BasePushNotificationSender(configs) : null, threads);
    JSONRPCHandler handler = new JSONRPCHandler(card, works, threads);
    RestHandler rest = new RestHandler(card, works, threads);
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    ServerCallContext context =
        new ServerCallContext(UnauthenticatedUser.INSTANCE, Map.of(), Set.of());
    server.createContext("/", exchange -> {
      JsonNode call = Utils.OBJECT_MAPPER.readTree(exchange.getRequestBody());
      Object answer = switch (call.get("method").asText()) {
        case "message/stream" -> handler.onMessageSendStream(
            Utils.OBJECT_MAPPER.treeToValue(call, SendStreamingMessageRequest.class), context);
        case "tasks/resubscribe" -> handler.onResubscribeToTask(
            Utils.OBJECT_MAPPER.treeToValue(call, TaskResubscriptionRequest.class), context);
        case "tasks/get" -> handler.onGetTask(
            Utils.OBJECT_MAPPER.treeToValue(call, GetTaskRequest.class), context);
        case "tasks/pushNotificationConfig/set" -> handler.setPushNotificationConfig(
            Utils.OBJECT_MAPPER.treeToValue(call, SetTaskPushNotificationConfigRequest.class),
            context);
        case "tasks/pushNotificationConfig/get" -> handler.getPushNotificationConfig(
            Utils.OBJECT_MAPPER.treeToValue(call, GetTaskPushNotificationConfigRequest.class),
            context);
        default -> handler.onMessageSend(
            Utils.OBJECT_MAPPER.treeToValue(call, SendMessageRequest.class), context);
      };
      if (answer instanceof Flow.Publisher<?> stream) {
        exchange.getResponseHeaders().set("Content-Type", "text/event-stream");
        exchange.sendResponseHeaders(200, 0);
        write(stream, exchange.getResponseBody());
        exchange.close();
        return;
      }
      byte[] body = Utils.OBJECT_MAPPER.writeValueAsBytes(answer);
      exchange.getResponseHeaders().set("Content-Type", "application/json");
      exchange.sendResponseHeaders(200, body.length);
      exchange.getResponseBody().write(body);
      exchange.close();
    });
    server.createContext("/.well-known/agent-card.json", exchange -> {
      byte[] body = Utils.OBJECT_MAPPER.writeValueAsBytes(card);
      exchange.getResponseHeaders().set("Content-Type", "application/json");
      exchange.sendResponseHeaders(200, body.length);
      exchange.getResponseBody().write(body);
      exchange.close();
    });
    server.createContext("/v1/tasks/", exchange -> {
      // /v1/tasks/{task}/pushNotificationConfigs[/{config}]
      String[] path = exchange.getRequestURI().getPath().split("/");
      String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
      RestHandler.HTTPRestResponse answer = exchange.getRequestMethod().equals("POST")
          ? rest.setTaskPushNotificationConfiguration(path[3], body, context)
          : rest.getTaskPushNotificationConfiguration(path[3], path[5], context);
      byte[] said = answer.getBody().getBytes(StandardCharsets.UTF_8);
      exchange.sendResponseHeaders(answer.getStatusCode(), said.length);
      exchange.getResponseBody().write(said);
      exchange.close();
    });
    server.setExecutor(threads);
    server.start();
  }

  /** Writes the events of a stream until its end; a client that is gone does not end it. */
  private static void write(Flow.Publisher<?> stream, OutputStream body) {
    CompletableFuture<Void> end = new CompletableFuture<>();
    stream.subscribe(new Flow.Subscriber<Object>() {
      @Override
      public void onSubscribe(Flow.Subscription subscription) {
        subscription.request(Long.MAX_VALUE);
      }

      @Override
      public void onNext(Object event) {
        try {
          String data = Utils.OBJECT_MAPPER.writeValueAsString(event);
          body.write(("data: " + data + "\n\n").getBytes(StandardCharsets.UTF_8));
          body.flush();
        } catch (IOException e) {
          // The client is gone.
        }
      }

      @Override
      public void onError(Throwable error) {
        end.completeExceptionally(error);
      }

      @Override
      public void onComplete() {
        end.complete(null);
      }
    });
    end.join();
  }
}
