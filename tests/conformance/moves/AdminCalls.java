import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeReplicaLogDirsResult.ReplicaLogDirInfo;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.PartitionReassignment;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;

/**
 * Calls of Java's Admin about moves, one after the other: AdminCalls BOOTSTRAP TOPIC
 *
 * The topic has two partitions with the replicas 1 and 2, and more records in the first of them than
 * a throttle admits at once. Prints the answers as JSON.
 */
public class AdminCalls {
    static final String[] SIDES = {"leader", "follower"};
    static final long LIMIT_NS = 150_000_000_000L;

    final Map<String, Object> seen = new TreeMap<>();
    final Admin admin;
    final String topic;
    final TopicPartition first, second, unknown;

    AdminCalls(Admin admin, String topic) {
        this.admin = admin;
        this.topic = topic;
        first = new TopicPartition(topic, 0);
        second = new TopicPartition(topic, 1);
        unknown = new TopicPartition(topic, 9);
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            AdminCalls calls = new AdminCalls(admin, arguments[1]);
            calls.throttle();
            calls.moveAndCancel();
            calls.moveWithoutThrottle();
            calls.elect();
            calls.moveBetweenDirectories();
            System.out.println(new ObjectMapper()
                .enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS).writeValueAsString(calls.seen));
        }
    }

    /** Returns the error's name; "NONE" without an error. */
    static String error(KafkaFuture<?> answer) throws InterruptedException {
        try {
            answer.get();
            return "NONE";
        } catch (ExecutionException e) {
            return Errors.forException(e.getCause()).name();
        }
    }

    static void await(Callable<Boolean> condition, String what) throws Exception {
        for (long began = System.nanoTime(); !condition.call(); Thread.sleep(50))
            if (System.nanoTime() - began > LIMIT_NS)
                throw new TimeoutException(what);
    }

    static ConfigResource worker(int id) {
        return new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id));
    }

    ConfigResource ofTopic() {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    /** Returns the value and source of each config of replication quotas of the resource. */
    Map<String, String> throttles(ConfigResource resource) throws Exception {
        Map<String, String> found = new TreeMap<>();
        for (ConfigEntry each : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries())
            if (each.name().contains("replication.throttled"))
                found.put(each.name(), each.value() + " " + each.source());
        return found;
    }

    void alter(Map<ConfigResource, Collection<AlterConfigOp>> changes) throws Exception {
        admin.incrementalAlterConfigs(changes).all().get();
    }

    /** Throttles the move of the first partition to nearly nothing, then describes the throttles. */
    void throttle() throws Exception {
        seen.put("workerBefore", throttles(worker(1)));
        seen.put("topicBefore", throttles(ofTopic()));
        Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
        for (int id = 1; id <= 3; id++)
            changes.put(worker(id), List.of(set("leader.replication.throttled.rate", "1"),
                set("follower.replication.throttled.rate", "1")));
        alter(changes);
        alter(Map.of(ofTopic(), List.of(
            new AlterConfigOp(new ConfigEntry("leader.replication.throttled.replicas", "0:1,0:2"),
                AlterConfigOp.OpType.APPEND),
            set("follower.replication.throttled.replicas", "0:3"))));
        for (int id = 1; id <= 3; id++) {
            int worker = id;
            await(() -> throttles(worker(worker)).keySet().contains("follower.replication.throttled.rate"),
                "throttles of worker " + id);
        }
        await(() -> throttles(ofTopic()).get("follower.replication.throttled.replicas").startsWith("0:3"),
            "throttles of the topic");
        seen.put("worker", throttles(worker(3)));
        seen.put("topic", throttles(ofTopic()));
        seen.put("badThrottle", error(admin.incrementalAlterConfigs(Map.of(ofTopic(),
            List.of(set("leader.replication.throttled.replicas", "0-1")))).all()));
        seen.put("badRate", error(admin.incrementalAlterConfigs(Map.of(worker(1),
            List.of(set("leader.replication.throttled.rate", "-1")))).all()));
    }

    static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    static Optional<NewPartitionReassignment> to(Integer... replicas) {
        return Optional.of(new NewPartitionReassignment(List.of(replicas)));
    }

    String move(TopicPartition partition, Optional<NewPartitionReassignment> target) throws Exception {
        return error(admin.alterPartitionReassignments(Map.of(partition, target)).all());
    }

    static String shown(Map<TopicPartition, PartitionReassignment> moves) {
        Map<String, String> found = new TreeMap<>();
        moves.forEach((partition, move) -> found.put("" + partition.partition(),
            move.replicas() + " adding " + move.addingReplicas() + " removing " + move.removingReplicas()));
        return found.toString();
    }

    String replicas(TopicPartition partition) throws Exception {
        TopicPartitionInfo found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
            .partitions().get(partition.partition());
        return found.replicas().stream().map(Node::id).toList() + " in sync "
            + found.isr().stream().map(Node::id).sorted().toList();
    }

    void moveAndCancel() throws Exception {
        seen.put("cancelNothing", move(first, Optional.empty()));
        seen.put("unknownPartition", move(unknown, to(1)));
        seen.put("unknownWorker", move(first, to(1, 9)));
        seen.put("twice", move(first, to(1, 1)));
        seen.put("move", move(first, to(3, 2)));
        seen.put("listed", shown(admin.listPartitionReassignments(Set.of(first, second)).reassignments().get()));
        Map<TopicPartition, PartitionReassignment> all = new HashMap<>(
            admin.listPartitionReassignments().reassignments().get());
        all.keySet().removeIf(each -> !each.topic().equals(topic));
        seen.put("listedOfAll", shown(all));
        seen.put("listedUnknown", shown(admin.listPartitionReassignments(Set.of(unknown)).reassignments().get()));
        seen.put("cancel", move(first, Optional.empty()));
        seen.put("listedAfterCancel", shown(admin.listPartitionReassignments(Set.of(first)).reassignments().get()));
        await(() -> replicas(first).equals("[2, 1] in sync [1, 2]"), "the old replicas");
    }

    void moveWithoutThrottle() throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
        for (int id = 1; id <= 3; id++)
            changes.put(worker(id), List.of(remove("leader.replication.throttled.rate"),
                remove("follower.replication.throttled.rate")));
        changes.put(ofTopic(), List.of(remove("leader.replication.throttled.replicas"),
            remove("follower.replication.throttled.replicas")));
        alter(changes);
        await(() -> throttles(worker(3)).equals(seen.get("workerBefore"))
            && throttles(ofTopic()).equals(seen.get("topicBefore")), "no throttles");
        seen.put("moveAgain", move(first, to(3, 2)));
        await(() -> admin.listPartitionReassignments(Set.of(first)).reassignments().get().isEmpty(), "the move");
        await(() -> replicas(first).equals("[3, 2] in sync [2, 3]"), "the new replicas");
    }

    static AlterConfigOp remove(String name) {
        return new AlterConfigOp(new ConfigEntry(name, ""), AlterConfigOp.OpType.DELETE);
    }

    void elect() throws Exception {
        seen.put("reorder", move(second, to(2, 1)));
        await(() -> replicas(second).equals("[2, 1] in sync [1, 2]"), "the new order");
        Map<String, String> elected = new TreeMap<>();
        admin.electLeaders(ElectionType.PREFERRED, Set.of(second, unknown)).partitions().get().forEach(
            (partition, e) -> elected.put("" + partition.partition(),
                e.map(Errors::forException).orElse(Errors.NONE).name()));
        seen.put("elected", elected);
        await(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().get(1)
            .leader().id() == 2, "the preferred leader");
        seen.put("electedAgain", error(admin.electLeaders(ElectionType.PREFERRED, Set.of(second)).all()));
    }

    static String name(String path) {
        return path == null ? null : Path.of(path).getFileName().toString();
    }

    void moveBetweenDirectories() throws Exception {
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 3);
        TopicPartitionReplica absent = new TopicPartitionReplica(topic, 1, 3);
        ReplicaLogDirInfo now = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
        seen.put("future", "" + now.getFutureReplicaLogDir());
        ReplicaLogDirInfo none = admin.describeReplicaLogDirs(List.of(absent)).all().get().get(absent);
        seen.put("absent", none.getCurrentReplicaLogDir() + " " + none.getFutureReplicaLogDir());
        String from = now.getCurrentReplicaLogDir();
        String target = Path.of(from).resolveSibling(name(from).equals("a") ? "b" : "a").toString();
        seen.put("sizes", admin.describeLogDirs(List.of(3)).allDescriptions().get().get(3).get(from)
            .replicaInfos().get(first).size() > 1 << 20);
        seen.put("unknownDirectory", error(admin.alterReplicaLogDirs(Map.of(replica, from + "x")).all()));
        seen.put("sameDirectory", error(admin.alterReplicaLogDirs(Map.of(replica, from)).all()));
        seen.put("otherDirectory", error(admin.alterReplicaLogDirs(Map.of(replica, target)).all()));
        await(() -> {
            ReplicaLogDirInfo info = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
            return target.equals(info.getCurrentReplicaLogDir()) && info.getFutureReplicaLogDir() == null;
        }, "the other directory");
        seen.put("inOldDirectory", admin.describeLogDirs(List.of(3)).allDescriptions().get().get(3).get(from)
            .replicaInfos().containsKey(first));
        seen.put("replicaNotHere", error(admin.alterReplicaLogDirs(Map.of(absent, from)).all()));
    }
}
