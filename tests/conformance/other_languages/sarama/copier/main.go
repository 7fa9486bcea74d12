// Copies a topic exactly once with sarama: main OPTIONS (JSON). Prints a line of JSON for each
// commit; ends with the line "close" on stdin. See tests/conformance/transactions/copiers.py.
package main

import (
	"log"
	"strings"
	"time"

	"conformance.test/shared"
	"github.com/IBM/sarama"
)

var given = shared.Copier{Most: 10}

type handler struct{ producer sarama.SyncProducer }

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// One claim at a time: a producer has one transaction at a time.
var turn = make(chan struct{}, 1)

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			turn <- struct{}{}
			shared.Must(h.producer.BeginTxn())
			_, _, err := h.producer.SendMessage(&sarama.ProducerMessage{
				Topic: given.Target, Key: sarama.ByteEncoder(message.Key), Value: sarama.ByteEncoder(message.Value)})
			shared.Must(err)
			shared.Must(h.producer.AddMessageToTxn(message, given.Group, nil))
			shared.Must(h.producer.CommitTxn())
			<-turn
			session.MarkMessage(message, "")
			shared.Say(map[string]any{"event": "committed", "count": 1})
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	shared.ReadOptions(&given)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 3 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = given.ID
	config.Producer.Transaction.Timeout = 5 * time.Second
	config.Net.MaxOpenRequests = 1
	servers := strings.Split(given.Bootstrap, ",")
	producer, err := sarama.NewSyncProducer(servers, config)
	shared.Must(err)
	group, err := sarama.NewConsumerGroup(servers, given.Group, config)
	shared.Must(err)
	shared.Say(map[string]any{"event": "ready"})
	ctx := shared.UntilClosed()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{given.Source}, handler{producer}); err != nil {
			log.Println(err)
		}
	}
	shared.Must(group.Close())
	shared.Must(producer.Close())
	shared.Say(map[string]any{"event": "closed"})
}
