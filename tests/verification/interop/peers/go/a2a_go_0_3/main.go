// An agent on a2a-go 0.3: program --port 9000 [--grpc-port 9001].
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2agrpc"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"
	"github.com/a2aproject/a2a-go/a2asrv/push"
	"google.golang.org/grpc"
)

type worker struct{}

func (worker) Execute(ctx context.Context, task *a2asrv.RequestContext, queue eventqueue.Queue) error {
	artifact := a2a.NewArtifactEvent(task, a2a.TextPart{Text: "héllo <b>&"})
	artifact.LastChunk = true
	completed := a2a.NewStatusUpdateEvent(task, a2a.TaskStateCompleted, nil)
	completed.Final = true
	events := []a2a.Event{
		a2a.NewStatusUpdateEvent(task, a2a.TaskStateWorking, nil), artifact, completed,
	}
	if task.StoredTask == nil {
		submitted := a2a.NewSubmittedTask(task, task.Message)
		events = append([]a2a.Event{submitted}, events...)
		part, ok := task.Message.Parts[0].(a2a.TextPart)
		if ok && part.Text == "wait" { // for a config, and another message
			waiting := a2a.NewStatusUpdateEvent(task, a2a.TaskStateInputRequired, nil)
			waiting.Final = true
			events = []a2a.Event{submitted, waiting}
		}
	}
	for _, event := range events {
		if err := queue.Write(ctx, event); err != nil {
			return err
		}
	}
	return nil
}

func (worker) Cancel(context.Context, *a2asrv.RequestContext, eventqueue.Queue) error {
	return nil
}

func main() {
	port := flag.Int("port", 9000, "")
	grpcPort := flag.Int("grpc-port", 0, "")
	flag.String("sender", "sdk", "")
	flag.String("folder", "", "")
	flag.Parse()
	handler := a2asrv.NewHandler(worker{},
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), push.NewHTTPPushSender(nil)))
	if *grpcPort != 0 {
		go serveGRPC(*grpcPort, handler)
	}
	http.Handle("/", a2asrv.NewJSONRPCHandler(handler))
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), nil))
}

func serveGRPC(port int, handler a2asrv.RequestHandler) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	a2agrpc.NewHandler(handler).RegisterWith(server)
	log.Fatal(server.Serve(listener))
}
