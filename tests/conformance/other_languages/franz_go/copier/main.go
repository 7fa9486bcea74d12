// Copies a topic exactly once with franz-go: main OPTIONS (JSON). Prints a line of JSON for each
// commit; ends with the line "close" on stdin. See tests/conformance/transactions/copiers.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	Bootstrap string `json:"bootstrap"`
	Group     string `json:"group"`
	Source    string `json:"source"`
	Target    string `json:"target"`
	ID        string `json:"id"`
	Most      int    `json:"most"`
}

func say(event map[string]any) {
	line, err := json.Marshal(event)
	must(err)
	_, err = os.Stdout.Write(append(line, '\n'))
	must(err)
}

func must(err error) {
	if err != nil {
		log.Fatalln(err)
	}
}

func main() {
	given := options{Most: 10}
	must(json.Unmarshal([]byte(os.Args[1]), &given))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...),
		kgo.TransactionalID(given.ID),
		kgo.TransactionTimeout(5*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeTopics(given.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(3*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond),
	)
	must(err)
	say(map[string]any{"event": "ready"})
	for {
		fetched := session.PollRecords(ctx, given.Most)
		if ctx.Err() != nil {
			break
		}
		for _, each := range fetched.Errors() {
			log.Println(each.Err)
		}
		if fetched.NumRecords() == 0 {
			continue
		}
		must(session.Begin())
		failed := false
		var promise kgo.FirstErrPromise
		fetched.EachRecord(func(each *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: given.Target, Key: each.Key, Value: each.Value}, promise.Promise())
		})
		failed = promise.Err() != nil
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(!failed))
		must(err)
		if committed {
			say(map[string]any{"event": "committed", "count": fetched.NumRecords()})
		} else {
			say(map[string]any{"event": "aborted"})
		}
	}
	session.Close()
	say(map[string]any{"event": "closed"})
}
