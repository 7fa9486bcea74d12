// A member of a group with sarama: main OPTIONS (JSON). Prints assignments, records and commits as
// lines of JSON; ends with the line "close" on stdin. See tests/conformance/groups/members.py.
package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"conformance.test/shared"
	"github.com/IBM/sarama"
)

type handler struct{}

func note(event string, session sarama.ConsumerGroupSession) error {
	places := [][]any{}
	for topic, indexes := range session.Claims() {
		for _, index := range indexes {
			places = append(places, []any{topic, index})
		}
	}
	shared.Say(map[string]any{"event": event, "partitions": places, "member": session.MemberID(),
		"generation": session.GenerationID()})
	return nil
}

func (handler) Setup(session sarama.ConsumerGroupSession) error   { return note("assigned", session) }
func (handler) Cleanup(session sarama.ConsumerGroupSession) error { return note("revoked", session) }

func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			shared.Say(map[string]any{"event": "record", "topic": message.Topic, "partition": message.Partition,
				"offset": message.Offset, "value": string(message.Value)})
			session.MarkMessage(message, "")
			session.Commit()
			shared.Say(map[string]any{"event": "committed"})
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	given := shared.Member{SessionMs: 10000}
	shared.ReadOptions(&given)
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Group.Session.Timeout = time.Duration(given.SessionMs) * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 20 * time.Second
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.Group.InstanceId = given.Instance
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Metadata.RefreshFrequency = time.Second
	// A commit waits for the fetch before it, on the same connection.
	config.Consumer.MaxWaitTime = 20 * time.Millisecond
	group, err := sarama.NewConsumerGroup(strings.Split(given.Bootstrap, ","), given.Group, config)
	shared.Must(err)
	ctx := shared.UntilClosed()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, given.Topics, handler{}); err != nil && !errors.Is(err, context.Canceled) {
			shared.Say(map[string]any{"event": "error", "name": err.Error()})
		}
	}
	shared.Must(group.Close())
	shared.Say(map[string]any{"event": "closed"})
}
