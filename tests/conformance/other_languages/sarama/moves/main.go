// Moves partitions with sarama: moves BOOTSTRAP TOPIC. Prints the answers as JSON.
//
// The topic has two partitions with the replicas 1 and 2, and more records in the first of them than
// a throttle admits at once.
package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"conformance.test/shared"
	"conformance/protocol"
	"github.com/IBM/sarama"
)

const (
	leaders   = "leader.replication.throttled."
	followers = "follower.replication.throttled."
	limit     = 170 * time.Second
)

var seen = map[string]any{}

type program struct {
	admin sarama.ClusterAdmin
	topic string
	end   time.Time
}

func (p program) wait(what string, condition func() bool) {
	shared.Wait(p.end, what, condition)
}

func worker(id int) (sarama.ConfigResourceType, string) {
	return sarama.BrokerResource, strconv.Itoa(id)
}

// The value and source of each config of replication quotas.
func (p program) throttles(kind sarama.ConfigResourceType, name string) map[string]string {
	entries, err := p.admin.DescribeConfig(sarama.ConfigResource{Type: kind, Name: name})
	shared.Must(err)
	found := map[string]string{}
	for _, entry := range entries {
		if strings.Contains(entry.Name, "replication.throttled") {
			found[entry.Name] = entry.Value + " " + entry.Source.String()
		}
	}
	return found
}

// Sets the configs of these values, or removes those with the value "".
func (p program) alter(kind sarama.ConfigResourceType, name string, configs map[string]string) int {
	entries := map[string]sarama.IncrementalAlterConfigsEntry{}
	for config, value := range configs {
		entry := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
		if value != "" {
			entry = sarama.IncrementalAlterConfigsEntry{
				Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
		}
		entries[config] = entry
	}
	return protocol.Code(p.admin.IncrementalAlterConfig(kind, name, entries, false))
}

func (p program) throttle(rate, throttledLeaders, throttledFollowers string) {
	for id := 1; id <= 3; id++ {
		kind, name := worker(id)
		shared.Must(wrong(p.alter(kind, name, map[string]string{leaders + "rate": rate, followers + "rate": rate})))
		p.wait("throttles of a worker", func() bool { return (len(p.throttles(kind, name)) == 2) == (rate != "") })
	}
	shared.Must(wrong(p.alter(sarama.TopicResource, p.topic, map[string]string{
		leaders + "replicas": throttledLeaders, followers + "replicas": throttledFollowers})))
	p.wait("throttles of the topic", func() bool {
		return strings.HasPrefix(p.throttles(sarama.TopicResource, p.topic)[followers+"replicas"],
			throttledFollowers+" ")
	})
}

func wrong(code int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("error code %d", code)
}

func (p program) shown() (map[string]string, map[string]string) {
	kind, name := worker(3)
	return p.throttles(kind, name), p.throttles(sarama.TopicResource, p.topic)
}

func (p program) listed(partitions ...int32) map[string]string {
	answers, err := p.admin.ListPartitionReassignments(p.topic, partitions)
	shared.Must(err)
	found := map[string]string{}
	for partition, each := range answers[p.topic] {
		found[fmt.Sprint(partition)] = fmt.Sprint(each.Replicas, " adding ", each.AddingReplicas,
			" removing ", each.RemovingReplicas)
	}
	return found
}

// Moves the partitions from 0 on; nil cancels the move of one.
func (p program) move(targets ...[]int32) int {
	return protocol.Code(p.admin.AlterPartitionReassignments(p.topic, targets))
}

func (p program) wantReplicas(partition int, wanted string) {
	p.wait(wanted, func() bool {
		topics, err := p.admin.DescribeTopics([]string{p.topic})
		shared.Must(err)
		for _, found := range topics[0].Partitions {
			slices.Sort(found.Isr)
			if int(found.ID) == partition && fmt.Sprint(found.Replicas, " in sync ", found.Isr) == wanted {
				return true
			}
		}
		return false
	})
}

func (p program) elect() map[string]int {
	answers, err := p.admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{p.topic: {1, 9}})
	shared.Must(err)
	return map[string]int{
		"1": int(answers[p.topic][1].ErrorCode), "9": int(answers[p.topic][9].ErrorCode)}
}

// The names of the directories of worker 3 that have the first partition with more than 1 MiB.
func (p program) directories() []string {
	described, err := p.admin.DescribeLogDirs([]int32{3})
	shared.Must(err)
	found := []string{}
	for _, directory := range described[3] {
		for _, each := range directory.Topics {
			for _, partition := range each.Partitions {
				if each.Topic == p.topic && partition.PartitionID == 0 && partition.Size > 1<<20 {
					found = append(found, path.Base(path.Dir(directory.Path)))
				}
			}
		}
	}
	return found
}

func main() {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	admin, err := sarama.NewClusterAdmin(strings.Split(os.Args[1], ","), config)
	shared.Must(err)
	p := program{admin, os.Args[2], time.Now().Add(limit)}
	same := []int32{1, 2}

	before, ofTopic := p.shown()
	seen["workerBefore"], seen["topicBefore"] = before, ofTopic
	p.throttle("1", "0:1,0:2", "0:3")
	seen["worker"], seen["topic"] = p.shown()
	seen["badThrottle"] = p.alter(sarama.TopicResource, p.topic, map[string]string{leaders + "replicas": "0-1"})
	seen["badRate"] = p.alter(sarama.BrokerResource, "1", map[string]string{leaders + "rate": "-1"})

	seen["cancelNothing"] = p.move(nil, same)
	seen["unknownPartition"] = p.move(same, same, same)
	seen["unknownWorker"] = p.move([]int32{1, 9}, same)
	seen["twice"] = p.move([]int32{1, 1}, same)
	seen["move"] = p.move([]int32{3, 2}, same)
	seen["listed"] = p.listed(0, 1, 9)
	seen["cancel"] = p.move(nil, same)
	seen["listedAfterCancel"] = p.listed(0)
	p.wantReplicas(0, "[2 1] in sync [1 2]")
	p.throttle("", "", "")

	seen["moveAgain"] = p.move([]int32{3, 2}, []int32{2, 1})
	p.wait("the move", func() bool { return len(p.listed(0)) == 0 })
	p.wantReplicas(0, "[3 2] in sync [2 3]")
	p.wantReplicas(1, "[2 1] in sync [1 2]")
	seen["elected"] = p.elect()
	seen["directories"] = p.directories()
	shared.Must(admin.Close())
	shared.Say(seen)
}
