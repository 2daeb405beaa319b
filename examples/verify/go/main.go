// Verifies the vectors in DIRECTORY: verify DIRECTORY. Prints a line of JSON for each.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

type document struct {
	Now     int64 `json:"now"`
	Senders []struct {
		Name     string   `json:"name"`
		Profile  string   `json:"profile"`
		Schemes  []string `json:"schemes"`
		Issuer   string   `json:"issuer"`
		Audience string   `json:"audience"`
	} `json:"senders"`
	Vectors []struct {
		ID      string `json:"id"`
		Request struct {
			Sender  string      `json:"sender"`
			Headers [][2]string `json:"headers"`
			Body    string      `json:"body"`
		} `json:"request"`
	} `json:"vectors"`
}

func read(name string, value any) {
	content, err := os.ReadFile(filepath.Join(os.Args[1], name))
	if err != nil {
		log.Fatal(err)
	}
	if err := json.Unmarshal(content, value); err != nil {
		log.Fatal(err)
	}
}

func main() {
	var found document
	var keys jose.JSONWebKeySet
	read("notifications.json", &found)
	read("jwks.json", &keys)
	out := json.NewEncoder(os.Stdout)
	for _, sender := range found.Senders {
		if sender.Profile != "standard" || !slices.Contains(sender.Schemes, "jwt") {
			continue
		}
		for _, vector := range found.Vectors {
			if vector.Request.Sender != sender.Name {
				continue
			}
			header := http.Header{}
			for _, field := range vector.Request.Headers {
				header.Add(field[0], field[1])
			}
			body, now := []byte(vector.Request.Body), time.Unix(found.Now, 0)
			_, err := Verify(header, body, keys, sender.Issuer, sender.Audience, now)
			result := map[string]any{"id": vector.ID, "accepted": err == nil}
			if err != nil {
				result["reason"] = err.Error()
			}
			out.Encode(result)
		}
	}
}
