// trpc-a2a-go 0.2, two ways:
//
//	program --port 9000                    an agent that signs its notifications
//	program --port 9000 --jwks URL         a webhook that verifies; a line of JSON for each
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"trpc.group/trpc-go/trpc-a2a-go/auth"
	"trpc.group/trpc-go/trpc-a2a-go/protocol"
	"trpc.group/trpc-go/trpc-a2a-go/server"
	"trpc.group/trpc-go/trpc-a2a-go/taskmanager"
)

type worker struct{ signer *auth.PushNotificationAuthenticator }

// ProcessMessage works, and sends the whole task after each step: the server itself sends nothing.
func (w worker) ProcessMessage(ctx context.Context, message protocol.Message,
	options taskmanager.ProcessOptions, handle taskmanager.TaskHandler,
) (*taskmanager.MessageProcessingResult, error) {
	id, err := handle.BuildTask(nil, message.ContextID)
	if err != nil {
		return nil, err
	}
	states := []protocol.TaskState{protocol.TaskStateWorking, protocol.TaskStateCompleted}
	for _, state := range states {
		if err := handle.UpdateTaskState(&id, state, nil); err != nil {
			return nil, err
		}
		task, err := handle.GetTask(&id)
		if err != nil {
			return nil, err
		}
		url := options.PushNotificationConfig.URL
		if err := w.signer.SendPushNotification(ctx, url, task.Task()); err != nil {
			return nil, err
		}
	}
	task, err := handle.GetTask(&id)
	if err != nil {
		return nil, err
	}
	return &taskmanager.MessageProcessingResult{Result: task.Task()}, nil
}

func main() {
	port := flag.Int("port", 9000, "")
	jwks := flag.String("jwks", "", "")
	flag.String("sender", "sdk", "")
	flag.String("folder", "", "")
	flag.Parse()
	address := fmt.Sprintf("127.0.0.1:%d", *port)
	if *jwks != "" {
		log.Fatal(http.ListenAndServe(address, verifier(*jwks)))
	}
	signer := auth.NewPushNotificationAuthenticator()
	if err := signer.GenerateKeyPair(); err != nil {
		log.Fatal(err)
	}
	manager, err := taskmanager.NewMemoryTaskManager(worker{signer})
	if err != nil {
		log.Fatal(err)
	}
	pushes := true
	agent, err := server.NewA2AServer(
		server.AgentCard{
			Name: "Working agent", URL: "http://" + address + "/", Version: "1.0.0",
			Capabilities: server.AgentCapabilities{PushNotifications: &pushes},
		},
		manager,
		server.WithJWKSEndpoint(true, "/.well-known/jwks.json"),
		server.WithPushNotificationAuthenticator(signer),
	)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(agent.Start(address))
}

func verifier(jwks string) http.Handler {
	checker := auth.NewPushNotificationAuthenticator()
	checker.SetJWKSClient(jwks)
	out := json.NewEncoder(os.Stdout)
	return http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err == nil {
			err = checker.VerifyPushNotification(request, body)
		}
		if err != nil {
			out.Encode(map[string]any{"ok": false, "reason": err.Error()})
			answer.WriteHeader(http.StatusUnauthorized)
			return
		}
		out.Encode(map[string]any{"ok": true})
		answer.WriteHeader(http.StatusOK)
	})
}
