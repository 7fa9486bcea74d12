// Copies a topic exactly once with sarama: main OPTIONS (JSON). Prints a line of JSON for each
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

	"github.com/IBM/sarama"
)

type options struct {
	Bootstrap string `json:"bootstrap"`
	Group     string `json:"group"`
	Source    string `json:"source"`
	Target    string `json:"target"`
	ID        string `json:"id"`
	Most      int    `json:"most"`
}

var given = options{Most: 10}

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
			must(h.producer.BeginTxn())
			_, _, err := h.producer.SendMessage(&sarama.ProducerMessage{
				Topic: given.Target, Key: sarama.ByteEncoder(message.Key), Value: sarama.ByteEncoder(message.Value)})
			must(err)
			must(h.producer.AddMessageToTxn(message, given.Group, nil))
			must(h.producer.CommitTxn())
			<-turn
			session.MarkMessage(message, "")
			say(map[string]any{"event": "committed", "count": 1})
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	must(json.Unmarshal([]byte(os.Args[1]), &given))
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
	must(err)
	group, err := sarama.NewConsumerGroup(servers, given.Group, config)
	must(err)
	say(map[string]any{"event": "ready"})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{given.Source}, handler{producer}); err != nil {
			log.Println(err)
		}
	}
	must(group.Close())
	must(producer.Close())
	say(map[string]any{"event": "closed"})
}
