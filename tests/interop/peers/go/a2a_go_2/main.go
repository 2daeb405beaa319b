// An agent on a2a-go 2: program --port 9000. A2A 1.0, and 0.3 for who names no version.
package main

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"log"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
)

type worker struct{}

func (worker) Execute(_ context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		artifact := a2a.NewArtifactEvent(task, a2a.NewTextPart("héllo <b>&"))
		artifact.LastChunk = true
		_ = yield(a2a.NewSubmittedTask(task, task.Message), nil) &&
			yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateWorking, nil), nil) &&
			yield(artifact, nil) &&
			yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateCompleted, nil), nil)
	}
}

func (worker) Cancel(_ context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateCanceled, nil), nil)
	}
}

func main() {
	port := flag.Int("port", 9000, "")
	flag.String("sender", "sdk", "")
	flag.String("folder", "", "")
	flag.Parse()
	// Its guard refuses loopback.
	sender := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true})
	handler := a2asrv.NewHandler(worker{},
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), sender))
	newer, older := a2asrv.NewJSONRPCHandler(handler), a2av0.NewJSONRPCHandler(handler)
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		if request.Header.Get("A2A-Version") == "" {
			older.ServeHTTP(answer, request)
		} else {
			newer.ServeHTTP(answer, request)
		}
	})
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), nil))
}
