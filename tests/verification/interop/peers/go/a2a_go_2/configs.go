package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpcv0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpcv1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// configs creates two push configs of task-1, reads and lists them, deletes the second, and asks for
// what is not there. It prints what it got.
func configs(arguments []string) {
	flags := flag.NewFlagSet("configs", flag.ExitOnError)
	url := flags.String("url", "", "")
	binding := flags.String("binding", "JSONRPC", "")
	version := flags.String("version", "1.0", "")
	hook := flags.String("hook", "", "")
	_ = flags.Parse(arguments)
	ctx := context.Background()
	client := clientOf(ctx, *url, *binding, *version)

	config := func(id string, task a2a.TaskID) *a2a.PushConfig {
		auth := &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "cred-interop-1"}
		return &a2a.PushConfig{TaskID: task, ID: id, URL: *hook, Token: "tok-interop-1", Auth: auth}
	}
	kept := must(client.CreateTaskPushConfig(ctx, config("kept", "task-1")))
	gone := must(client.CreateTaskPushConfig(ctx, config("gone", "task-1")))
	named := &a2a.GetTaskPushConfigRequest{TaskID: "task-1", ID: "gone"}
	list := &a2a.ListTaskPushConfigRequest{TaskID: "task-1"}
	read := must(client.GetTaskPushConfig(ctx, named))
	before := must(client.ListTaskPushConfigs(ctx, list))
	deleted := &a2a.DeleteTaskPushConfigRequest{TaskID: "task-1", ID: "gone"}
	if err := client.DeleteTaskPushConfig(ctx, deleted); err != nil {
		log.Fatal(err)
	}
	after := must(client.ListTaskPushConfigs(ctx, list))
	_, missing := client.GetTaskPushConfig(ctx, named)
	_, foreign := client.CreateTaskPushConfig(ctx, config("c", "nobodys"))

	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"created": []*a2a.PushConfig{kept, gone},
		"read":    read,
		"before":  before,
		"after":   after,
		"missing": errors.Is(missing, a2a.ErrTaskNotFound),
		"foreign": errors.Is(foreign, a2a.ErrTaskNotFound),
	})
}

func clientOf(ctx context.Context, url, binding, version string) *a2aclient.Client {
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	client, err := a2aclient.NewFromEndpoints(ctx,
		[]*a2a.AgentInterface{{
			URL:             url,
			ProtocolBinding: a2a.TransportProtocol(binding),
			ProtocolVersion: a2a.ProtocolVersion(version),
		}},
		grpcv1.WithGRPCTransport(plain),
		grpcv0.WithGRPCTransport(plain),
		a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{}),
	)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
