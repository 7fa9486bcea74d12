// A member of a group with sarama: main OPTIONS (JSON). Prints assignments, records and commits as
// lines of JSON; ends with the line "close" on stdin. See tests/conformance/groups/members.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type options struct {
	Bootstrap string   `json:"bootstrap"`
	Group     string   `json:"group"`
	Topics    []string `json:"topics"`
	Instance  string   `json:"instance"`
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

type handler struct{}

func note(event string, session sarama.ConsumerGroupSession) error {
	places := [][]any{}
	for topic, indexes := range session.Claims() {
		for _, index := range indexes {
			places = append(places, []any{topic, index})
		}
	}
	say(map[string]any{"event": event, "partitions": places, "member": session.MemberID(),
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
			say(map[string]any{"event": "record", "topic": message.Topic, "partition": message.Partition,
				"offset": message.Offset, "value": string(message.Value)})
			session.MarkMessage(message, "")
			session.Commit()
			say(map[string]any{"event": "committed"})
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	given := options{SessionMs: 10000}
	must(json.Unmarshal([]byte(os.Args[1]), &given))
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
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, given.Topics, handler{}); err != nil && !errors.Is(err, context.Canceled) {
			say(map[string]any{"event": "error", "name": err.Error()})
		}
	}
	must(group.Close())
	say(map[string]any{"event": "closed"})
}
