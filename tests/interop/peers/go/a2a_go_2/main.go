// a2a-go 2, two ways:
//
//	program --port 9000 [--grpc-port 9001]    an agent: A2A 1.0, and 0.3 for who names no version
//	program configs --url URL --binding GRPC --version 1.0 --hook URL
//	                                          its client registers push configs, and says what it saw
package main

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpcv0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpcv1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
	"google.golang.org/grpc"
)

type worker struct{}

func (worker) Execute(_ context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if task.StoredTask == nil {
			if !yield(a2a.NewSubmittedTask(task, task.Message), nil) {
				return
			}
			if task.Message.Parts[0].Text() == "wait" { // for a config, and another message
				yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateInputRequired, nil), nil)
				return
			}
		}
		artifact := a2a.NewArtifactEvent(task, a2a.NewTextPart("héllo <b>&"))
		artifact.LastChunk = true
		_ = yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateWorking, nil), nil) &&
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
	if len(os.Args) > 1 && os.Args[1] == "configs" {
		configs(os.Args[2:])
		return
	}
	port := flag.Int("port", 9000, "")
	grpcPort := flag.Int("grpc-port", 0, "")
	flag.String("sender", "sdk", "")
	flag.String("folder", "", "")
	flag.Parse()
	// Its guard refuses loopback.
	sender := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true})
	handler := a2asrv.NewHandler(worker{},
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), sender))
	if *grpcPort != 0 {
		go serveGRPC(*grpcPort, handler)
	}
	newer, older := a2asrv.NewJSONRPCHandler(handler), a2av0.NewJSONRPCHandler(handler)
	newerREST, olderREST := a2asrv.NewRESTHandler(handler), a2av0.NewRESTHandler(handler)
	serve := func(answer http.ResponseWriter, request *http.Request) {
		switch {
		case strings.HasPrefix(request.URL.Path, "/v1/"):
			olderREST.ServeHTTP(answer, request)
		case request.URL.Path != "/":
			newerREST.ServeHTTP(answer, request)
		case request.Header.Get("A2A-Version") == "":
			older.ServeHTTP(answer, request)
		default:
			newer.ServeHTTP(answer, request)
		}
	}
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), http.HandlerFunc(serve)))
}

func serveGRPC(port int, handler a2asrv.RequestHandler) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpcv1.NewHandler(handler).RegisterWith(server)
	grpcv0.NewHandler(handler).RegisterWith(server)
	log.Fatal(server.Serve(listener))
}
