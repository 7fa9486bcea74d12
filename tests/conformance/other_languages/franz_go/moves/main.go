// Moves partitions with franz-go: moves BOOTSTRAP TOPIC. Prints the answers as JSON.
//
// The topic has two partitions with the replicas 1 and 2, and more records in the first of them than
// a throttle admits at once.
package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"conformance.test/shared"
	"conformance/protocol"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	leaders   = "leader.replication.throttled."
	followers = "follower.replication.throttled."
	limit     = 170 * time.Second
)

var seen = map[string]any{}

type program struct {
	ctx   context.Context
	admin *kadm.Client
	topic string
	end   time.Time
}

func (p program) wait(what string, condition func() bool) {
	shared.Wait(p.end, what, condition)
}

func set(name, value string) kadm.AlterConfig {
	return kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
}

func remove(name string) kadm.AlterConfig {
	return kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name}
}

func altered(answers kadm.AlterConfigsResponses, err error) string {
	shared.Must(err)
	for _, each := range answers {
		if each.Err != nil {
			return protocol.Name(each.Err)
		}
	}
	return "NONE"
}

// The value and source of each config of replication quotas.
func throttles(described kadm.ResourceConfigs, err error) map[string]string {
	shared.Must(err)
	shared.Must(described[0].Err)
	found := map[string]string{}
	for _, config := range described[0].Configs {
		if strings.Contains(config.Key, "replication.throttled") {
			found[config.Key] = config.MaybeValue() + " " + config.Source.String()
		}
	}
	return found
}

func (p program) ofWorker(id int32) map[string]string {
	return throttles(p.admin.DescribeBrokerConfigs(p.ctx, id))
}

func (p program) ofTopic() map[string]string {
	return throttles(p.admin.DescribeTopicConfigs(p.ctx, p.topic))
}

// Throttles the move of the first partition to nearly nothing.
func (p program) throttle() {
	seen["workerBefore"], seen["topicBefore"] = p.ofWorker(1), p.ofTopic()
	rates := []kadm.AlterConfig{set(leaders+"rate", "1"), set(followers+"rate", "1")}
	seen["alterWorkers"] = altered(p.admin.AlterBrokerConfigs(p.ctx, rates, 1, 2, 3))
	replicas := []kadm.AlterConfig{set(leaders+"replicas", "0:1,0:2"), set(followers+"replicas", "0:3")}
	seen["alterTopic"] = altered(p.admin.AlterTopicConfigs(p.ctx, replicas, p.topic))
	for id := int32(1); id <= 3; id++ {
		p.wait("throttles of a worker", func() bool { return len(p.ofWorker(id)) == 2 })
	}
	p.wait("throttles of the topic", func() bool {
		return strings.HasPrefix(p.ofTopic()[followers+"replicas"], "0:3")
	})
	seen["worker"], seen["topic"] = p.ofWorker(3), p.ofTopic()
	seen["badThrottle"] = altered(p.admin.AlterTopicConfigs(p.ctx,
		[]kadm.AlterConfig{set(leaders+"replicas", "0-1")}, p.topic))
	seen["badRate"] = altered(p.admin.AlterBrokerConfigs(p.ctx,
		[]kadm.AlterConfig{set(leaders+"rate", "-1")}, 1))
}

func (p program) withoutThrottle() {
	rates := []kadm.AlterConfig{remove(leaders + "rate"), remove(followers + "rate")}
	seen["restoreWorkers"] = altered(p.admin.AlterBrokerConfigs(p.ctx, rates, 1, 2, 3))
	replicas := []kadm.AlterConfig{remove(leaders + "replicas"), remove(followers + "replicas")}
	seen["restoreTopic"] = altered(p.admin.AlterTopicConfigs(p.ctx, replicas, p.topic))
	p.wait("no throttles", func() bool {
		return len(p.ofWorker(1)) == 0 && strings.HasPrefix(p.ofTopic()[followers+"replicas"], " ")
	})
}

func (p program) move(ctx context.Context, partition int32, replicas ...int32) string {
	var asked kadm.AlterPartitionAssignmentsReq
	asked.Assign(p.topic, partition, replicas)
	return p.alter(ctx, asked)
}

func (p program) alter(ctx context.Context, asked kadm.AlterPartitionAssignmentsReq) string {
	answers, err := p.admin.AlterPartitionAssignments(ctx, asked)
	shared.Must(err)
	return protocol.Name(answers.Error())
}

func (p program) cancel() string {
	var asked kadm.AlterPartitionAssignmentsReq
	asked.CancelAssign(p.topic, 0)
	return p.alter(p.ctx, asked)
}

func (p program) listed(partitions ...int32) map[string]string {
	var asked kadm.TopicsSet
	asked.Add(p.topic, partitions...)
	answers, err := p.admin.ListPartitionReassignments(p.ctx, asked)
	shared.Must(err)
	found := map[string]string{}
	for _, each := range answers.Sorted() {
		found[fmt.Sprint(each.Partition)] = fmt.Sprint(each.Replicas, " adding ", each.AddingReplicas,
			" removing ", each.RemovingReplicas)
	}
	return found
}

func (p program) replicas(partition int32) string {
	topics, err := p.admin.ListTopics(p.ctx, p.topic)
	shared.Must(err)
	found := topics[p.topic].Partitions[partition]
	slices.Sort(found.ISR)
	return fmt.Sprint(found.Replicas, " in sync ", found.ISR)
}

func (p program) wantReplicas(partition int32, wanted string) {
	p.wait(wanted, func() bool { return p.replicas(partition) == wanted })
}

func (p program) moves() {
	seen["cancelNothing"] = p.cancel()
	seen["unknownPartition"] = p.move(p.ctx, 9, 1)
	seen["unknownWorker"] = p.move(p.ctx, 0, 1, 9)
	seen["otherFactor"] = p.move(kadm.ForbidAlterRf(p.ctx), 0, 3)
	seen["twice"] = p.move(p.ctx, 0, 1, 1)
	seen["move"] = p.move(p.ctx, 0, 3, 2)
	seen["listed"] = p.listed(0, 1, 9)
	seen["cancel"] = p.cancel()
	seen["listedAfterCancel"] = p.listed(0)
	p.wantReplicas(0, "[2 1] in sync [1 2]")
	p.withoutThrottle()
	seen["moveAgain"] = p.move(p.ctx, 0, 3, 2)
	p.wait("the move", func() bool { return len(p.listed(0)) == 0 })
	p.wantReplicas(0, "[3 2] in sync [2 3]")
}

func (p program) elect() {
	seen["reorder"] = p.move(p.ctx, 1, 2, 1)
	p.wantReplicas(1, "[2 1] in sync [1 2]")
	var asked kadm.TopicsSet
	asked.Add(p.topic, 1, 9)
	elected, err := p.admin.ElectLeaders(p.ctx, kadm.ElectPreferredReplica, asked)
	shared.Must(err)
	seen["elected"] = map[string]string{
		"1": protocol.Name(elected[p.topic][1].Err), "9": protocol.Name(elected[p.topic][9].Err)}
}

func (p program) directories() kadm.DescribedLogDirs {
	var asked kadm.TopicsSet
	asked.Add(p.topic, 0, 1)
	described, err := p.admin.DescribeBrokerLogDirs(p.ctx, 3, asked)
	shared.Must(err)
	shared.Must(described.Error())
	return described
}

func (p program) moveTo(directory string, partition int32) string {
	var asked kadm.AlterReplicaLogDirsReq
	var partitions kadm.TopicsSet
	partitions.Add(p.topic, partition)
	asked.Add(directory, partitions)
	answers, err := p.admin.AlterBrokerReplicaLogDirs(p.ctx, 3, asked)
	shared.Must(err)
	return protocol.Name(answers[p.topic][partition].Err)
}

func (p program) moveBetweenDirectories() {
	now, found := p.directories().LookupPartition(p.topic, 0)
	seen["found"] = []any{found, now.IsFuture, now.Size > 1<<20}
	target := path.Join(path.Dir(now.Dir), map[string]string{"a": "b", "b": "a"}[path.Base(now.Dir)])
	seen["unknownDirectory"] = p.moveTo(now.Dir+"x", 0)
	seen["sameDirectory"] = p.moveTo(now.Dir, 0)
	seen["otherDirectory"] = p.moveTo(target, 0)
	p.wait("the other directory", func() bool {
		described := p.directories()
		there, isThere := described.Lookup(target, p.topic, 0)
		_, isHere := described.Lookup(now.Dir, p.topic, 0)
		return isThere && !there.IsFuture && !isHere
	})
	seen["replicaNotHere"] = p.moveTo(target, 1)
}

func main() {
	end := time.Now().Add(limit)
	ctx, stop := context.WithDeadline(context.Background(), end)
	defer stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Args[1], ",")...))
	shared.Must(err)
	defer client.Close()
	p := program{ctx, kadm.NewClient(client), os.Args[2], end}
	p.throttle()
	p.moves()
	p.elect()
	p.moveBetweenDirectories()
	shared.Say(seen)
}
