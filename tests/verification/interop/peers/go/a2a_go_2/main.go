// a2a-go 2, two ways:
//
//	program --port 9000 [--grpc-port 9001]    an agent: A2A 1.0, and 0.3 for who names no version;
//	                                          with --sender none, for a gateway in front
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
	"path/filepath"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpcv0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpcv1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
	"google.golang.org/grpc"
)

type worker struct{ folder string }

func (w worker) Execute(_ context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
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
			w.released() &&
			yield(artifact, nil) &&
			yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateCompleted, nil), nil)
	}
}

// released returns once there is no file `hold` in the agent's folder: work takes as long as a test wants.
func (w worker) released() bool {
	for {
		if _, err := os.Stat(filepath.Join(w.folder, "hold")); err != nil {
			return true
		}
		time.Sleep(20 * time.Millisecond)
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
	senderName := flag.String("sender", "sdk", "")
	folder := flag.String("folder", "", "")
	flag.Parse()
	// Its guard refuses loopback.
	sender := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true})
	var options []a2asrv.RequestHandlerOption
	if *senderName != "none" {
		options = append(options, a2asrv.WithPushNotifications(push.NewInMemoryStore(), sender))
	}
	handler := a2asrv.NewHandler(worker{*folder}, options...)
	if *grpcPort != 0 {
		go serveGRPC(*grpcPort, handler)
	}
	newer, older := a2asrv.NewJSONRPCHandler(handler), a2av0.NewJSONRPCHandler(handler)
	newerREST, olderREST := a2asrv.NewRESTHandler(handler), a2av0.NewRESTHandler(handler)
	mux := http.NewServeMux()
	card := a2asrv.NewStaticAgentCardHandler(cardOf(*port, *senderName != "none"))
	mux.Handle(a2asrv.WellKnownAgentCardPath, card)
	mux.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
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
	})
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), mux))
}

func cardOf(port int, pushes bool) *a2a.AgentCard {
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	return &a2a.AgentCard{
		Name:                "Working agent",
		Description:         "Works.",
		Version:             "1.0.0",
		SupportedInterfaces: []*a2a.AgentInterface{a2a.NewAgentInterface(url, a2a.TransportProtocolJSONRPC)},
		Capabilities:        a2a.AgentCapabilities{Streaming: true, PushNotifications: pushes},
		DefaultInputModes:   []string{"text/plain"},
		DefaultOutputModes:  []string{"text/plain"},
		Skills:              []a2a.AgentSkill{},
	}
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
