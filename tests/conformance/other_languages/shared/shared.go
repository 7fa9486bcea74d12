// Package shared has what the Go programs of these tests have in common, with either client.
package shared

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"time"
)

// Copier has the options of a program that copies a topic exactly once. See
// tests/conformance/transactions/copiers.py.
type Copier struct {
	Bootstrap string `json:"bootstrap"`
	Group     string `json:"group"`
	Source    string `json:"source"`
	Target    string `json:"target"`
	ID        string `json:"id"`
	Most      int    `json:"most"`
}

// Member has the options of a member of a group. See tests/conformance/groups/members.py.
type Member struct {
	Bootstrap string   `json:"bootstrap"`
	Group     string   `json:"group"`
	Topics    []string `json:"topics"`
	Instance  string   `json:"instance"`
	Assignor  string   `json:"assignor"`
	SessionMs int      `json:"session_ms"`
}

var printing sync.Mutex

// Must ends the program if there is an error.
func Must(err error) {
	if err != nil {
		log.Fatalln(err)
	}
}

// ReadOptions sets the given options to those in the first argument, which is JSON.
func ReadOptions(given any) {
	Must(json.Unmarshal([]byte(os.Args[1]), given))
}

// Say prints an event, or the results of the program, as one line of JSON.
func Say(event any) {
	printing.Lock()
	defer printing.Unlock()
	Must(json.NewEncoder(os.Stdout).Encode(event))
}

// UntilClosed returns a context that ends with a line on stdin, or with stdin.
func UntilClosed() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	return ctx
}

// Wait waits until the condition holds; it ends the program if that is not before the end.
func Wait(end time.Time, what string, condition func() bool) {
	for !condition() {
		if time.Now().After(end) {
			log.Fatalln("not in time:", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
