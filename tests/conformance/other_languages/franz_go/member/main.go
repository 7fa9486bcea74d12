// A member of a group with franz-go: main OPTIONS (JSON). Prints assignments, records and commits as
// lines of JSON; ends with the line "close" on stdin. See tests/conformance/groups/members.py.
package main

import (
	"context"
	"strings"
	"time"

	"conformance.test/shared"
	"github.com/twmb/franz-go/pkg/kgo"
)

func note(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, client *kgo.Client, given map[string][]int32) {
		places := [][]any{}
		for topic, indexes := range given {
			for _, index := range indexes {
				places = append(places, []any{topic, index})
			}
		}
		member, generation := client.GroupMetadata()
		shared.Say(map[string]any{"event": event, "partitions": places, "member": member, "generation": generation})
	}
}

func main() {
	given := shared.Member{SessionMs: 10000}
	shared.ReadOptions(&given)
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
	shared.Must(err)
	ctx := shared.UntilClosed()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) {
			shared.Say(map[string]any{"event": "record", "topic": record.Topic, "partition": record.Partition,
				"offset": record.Offset, "value": string(record.Value)})
		})
		if !fetches.Empty() {
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				shared.Say(map[string]any{"event": "commit failed", "name": err.Error()})
			} else {
				shared.Say(map[string]any{"event": "committed"})
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	shared.Say(map[string]any{"event": "closed"})
}
