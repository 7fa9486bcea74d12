// A member of a group with franz-go: main OPTIONS (JSON). Prints assignments, records and commits as
// lines of JSON; ends with the line "close" on stdin. See tests/conformance/groups/members.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	Bootstrap string   `json:"bootstrap"`
	Group     string   `json:"group"`
	Topics    []string `json:"topics"`
	Instance  string   `json:"instance"`
	Assignor  string   `json:"assignor"`
	SessionMs int      `json:"session_ms"`
}

var printing sync.Mutex

func say(event map[string]any) {
	printing.Lock()
	defer printing.Unlock()
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

func note(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, client *kgo.Client, given map[string][]int32) {
		places := [][]any{}
		for topic, indexes := range given {
			for _, index := range indexes {
				places = append(places, []any{topic, index})
			}
		}
		member, generation := client.GroupMetadata()
		say(map[string]any{"event": event, "partitions": places, "member": member, "generation": generation})
	}
}

func main() {
	given := options{SessionMs: 10000}
	must(json.Unmarshal([]byte(os.Args[1]), &given))
	balancer := kgo.GroupBalancer(kgo.RangeBalancer())
	if given.Assignor == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...),
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeTopics(given.Topics...),
		kgo.Balancers(balancer),
		kgo.SessionTimeout(time.Duration(given.SessionMs) * time.Millisecond),
		kgo.RebalanceTimeout(20 * time.Second),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(note("assigned")),
		kgo.OnPartitionsRevoked(note("revoked")),
		kgo.OnPartitionsLost(note("lost")),
	}
	if given.Instance != "" {
		settings = append(settings, kgo.InstanceID(given.Instance))
	}
	client, err := kgo.NewClient(settings...)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) {
			say(map[string]any{"event": "record", "topic": record.Topic, "partition": record.Partition,
				"offset": record.Offset, "value": string(record.Value)})
		})
		if !fetches.Empty() {
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				say(map[string]any{"event": "commit failed", "name": err.Error()})
			} else {
				say(map[string]any{"event": "committed"})
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	say(map[string]any{"event": "closed"})
}
