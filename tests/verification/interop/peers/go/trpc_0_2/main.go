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

type worker struct {
	signer  *auth.PushNotificationAuthenticator
	manager *taskmanager.MemoryTaskManager
}

// ProcessMessage works, and sends the whole task after each step: the server itself sends nothing.
func (w *worker) ProcessMessage(ctx context.Context, message protocol.Message,
	options taskmanager.ProcessOptions, handle taskmanager.TaskHandler,
) (*taskmanager.MessageProcessingResult, error) {
	id, states, err := w.next(message, handle)
	if err != nil {
		return nil, err
	}
	for _, state := range states {
		if err := handle.UpdateTaskState(&id, state, nil); err != nil {
			return nil, err
		}
		url, err := w.webhook(ctx, id, options)
		if err != nil {
			continue // nobody asked
		}
		task, err := handle.GetTask(&id)
		if err != nil {
			return nil, err
		}
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

// next returns the task of a message, and the states that it goes through now.
func (w *worker) next(message protocol.Message, handle taskmanager.TaskHandler,
) (string, []protocol.TaskState, error) {
	rest := []protocol.TaskState{protocol.TaskStateWorking, protocol.TaskStateCompleted}
	if message.TaskID != nil {
		return *message.TaskID, rest, nil
	}
	id, err := handle.BuildTask(nil, message.ContextID)
	if text, ok := message.Parts[0].(*protocol.TextPart); ok && text.Text == "wait" {
		rest = []protocol.TaskState{protocol.TaskStateInputRequired} // for a config, and another message
	}
	return id, rest, err
}

// webhook returns the URL that came with the message, or was registered for its task.
func (w *worker) webhook(ctx context.Context, id string, options taskmanager.ProcessOptions,
) (string, error) {
	if options.PushNotificationConfig != nil {
		return options.PushNotificationConfig.URL, nil
	}
	config, err := w.manager.OnPushNotificationGet(ctx, protocol.TaskIDParams{ID: id})
	if err != nil {
		return "", err
	}
	return config.PushNotificationConfig.URL, nil
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
	works := &worker{signer: signer}
	manager, err := taskmanager.NewMemoryTaskManager(works)
	if err != nil {
		log.Fatal(err)
	}
	works.manager = manager
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
