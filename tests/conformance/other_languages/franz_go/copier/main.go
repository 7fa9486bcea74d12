// Copies a topic exactly once with franz-go: main OPTIONS (JSON). Prints a line of JSON for each
// commit; ends with the line "close" on stdin. See tests/conformance/transactions/copiers.py.
package main

import (
	"context"
	"log"
	"strings"
	"time"

	"conformance.test/shared"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	given := shared.Copier{Most: 10}
	shared.ReadOptions(&given)
	ctx := shared.UntilClosed()
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
	shared.Must(err)
	shared.Say(map[string]any{"event": "ready"})
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
		shared.Must(session.Begin())
		failed := false
		var promise kgo.FirstErrPromise
		fetched.EachRecord(func(each *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: given.Target, Key: each.Key, Value: each.Value}, promise.Promise())
		})
		failed = promise.Err() != nil
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(!failed))
		shared.Must(err)
		if committed {
			shared.Say(map[string]any{"event": "committed", "count": fetched.NumRecords()})
		} else {
			shared.Say(map[string]any{"event": "aborted"})
		}
	}
	session.Close()
	shared.Say(map[string]any{"event": "closed"})
}
