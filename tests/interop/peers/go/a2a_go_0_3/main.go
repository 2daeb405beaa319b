// An agent on a2a-go 0.3: program --port 9000.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"
	"github.com/a2aproject/a2a-go/a2asrv/push"
)

type worker struct{}

func (worker) Execute(ctx context.Context, task *a2asrv.RequestContext, queue eventqueue.Queue) error {
	artifact := a2a.NewArtifactEvent(task, a2a.TextPart{Text: "héllo <b>&"})
	artifact.LastChunk = true
	completed := a2a.NewStatusUpdateEvent(task, a2a.TaskStateCompleted, nil)
	completed.Final = true
	for _, event := range []a2a.Event{
		a2a.NewSubmittedTask(task, task.Message),
		a2a.NewStatusUpdateEvent(task, a2a.TaskStateWorking, nil),
		artifact,
		completed,
	} {
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
	flag.String("sender", "sdk", "")
	flag.String("folder", "", "")
	flag.Parse()
	handler := a2asrv.NewHandler(worker{},
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), push.NewHTTPPushSender(nil)))
	http.Handle("/", a2asrv.NewJSONRPCHandler(handler))
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), nil))
}
