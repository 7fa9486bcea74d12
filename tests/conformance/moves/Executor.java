import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;

/**
 * Executes moves in the sequence of calls of Cruise Control's executor: Executor BOOTSTRAP TOPIC
 *
 * The topic has partitions with the replicas 1 and 2. Each batch has at most one move for a worker.
 * Its throttles are set first, where no others are, and removed after it. Once the moves are complete,
 * replicas move between directories and preferred leaders are elected; then a batch is stopped. Prints
 * what it has seen as JSON.
 */
public class Executor {
    static final long LIMIT_NS = 150_000_000_000L;
    static final List<String> RATES =
        List.of("leader.replication.throttled.rate", "follower.replication.throttled.rate");
    static final List<String> REPLICAS =
        List.of("leader.replication.throttled.replicas", "follower.replication.throttled.replicas");
    static final int MOVES_OF_A_WORKER = 1;

    record Move(TopicPartition partition, List<Integer> from, List<Integer> to) {
        Set<Integer> workers() {
            Set<Integer> all = new TreeSet<>(from);
            all.addAll(to);
            return all;
        }

        Set<String> pairs() {
            return workers().stream().map(id -> partition.partition() + ":" + id)
                .collect(Collectors.toCollection(TreeSet::new));
        }
    }

    final Map<String, Object> seen = new TreeMap<>();
    final Admin admin;
    final String topic;
    /** Configs of throttles that this program has set, of each worker. */
    final Map<Integer, Set<String>> ownRates = new HashMap<>();
    int batches = 0, most = 0;

    Executor(Admin admin, String topic) {
        this.admin = admin;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            Executor executor = new Executor(admin, arguments[1]);
            executor.run();
            System.out.println(new ObjectMapper()
                .enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS).writeValueAsString(executor.seen));
        }
    }

    void run() throws Exception {
        seen.put("workers", admin.describeCluster().nodes().get().stream().map(Node::id).sorted().toList());
        Map<Integer, List<Integer>> targets = Map.of(0, List.of(3, 1), 1, List.of(2, 3), 2, List.of(3, 2),
            3, List.of(1, 3), 4, List.of(2, 1));
        execute(targets, "30000000", false);
        seen.put("batches", batches > 1);
        seen.put("movesAtOnce", most);
        seen.put("replicas", replicas());
        moveBetweenDirectories(3);
        electLeaders();
        execute(Map.of(0, List.of(1, 2)), "1", true);
        seen.put("replicasAfterStop", replicas());
    }

    static void await(Callable<Boolean> condition, String what) throws Exception {
        for (long began = System.nanoTime(); !condition.call(); Thread.sleep(50))
            if (System.nanoTime() - began > LIMIT_NS)
                throw new TimeoutException(what);
    }

    List<TopicPartitionInfo> partitions() throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
    }

    static List<Integer> ids(List<Node> nodes) {
        return nodes.stream().map(Node::id).toList();
    }

    Map<String, String> replicas() throws Exception {
        Map<String, String> found = new TreeMap<>();
        for (TopicPartitionInfo each : partitions())
            found.put("" + each.partition(), ids(each.replicas()) + " in sync " + new TreeSet<>(ids(each.isr())));
        return found;
    }

    /** Moves in batches, and waits for each; with `stop`, cancels the first batch. */
    void execute(Map<Integer, List<Integer>> targets, String rate, boolean stop) throws Exception {
        if (admin.listPartitionReassignments().reassignments().get().keySet().stream()
            .anyMatch(each -> each.topic().equals(topic)))
            throw new IllegalStateException("others move partitions of " + topic);
        List<Move> left = new ArrayList<>();
        for (TopicPartitionInfo each : partitions())
            if (targets.containsKey(each.partition()))
                left.add(new Move(new TopicPartition(topic, each.partition()), ids(each.replicas()),
                    targets.get(each.partition())));
        while (!left.isEmpty()) {
            List<Move> batch = next(left);
            left.removeAll(batch);
            batches++;
            most = Math.max(most, batch.size());
            setThrottles(batch, rate);
            admin.alterPartitionReassignments(batch.stream().collect(Collectors.toMap(Move::partition,
                each -> Optional.of(new NewPartitionReassignment(each.to()))))).all().get();
            if (stop) {
                seen.put("inFlight", inFlight(batch));
                admin.alterPartitionReassignments(batch.stream().collect(Collectors.toMap(Move::partition,
                    each -> Optional.<NewPartitionReassignment>empty()))).all().get();
            }
            await(() -> inFlight(batch) == 0, "the moves");
            for (Move each : batch)
                await(() -> new HashSet<>(ids(partitions().get(each.partition().partition()).isr()))
                    .equals(new HashSet<>(stop ? each.from() : each.to())), each + " in sync");
            clearThrottles(batch);
        }
    }

    int inFlight(List<Move> batch) throws Exception {
        return admin.listPartitionReassignments(batch.stream().map(Move::partition).collect(Collectors.toSet()))
            .reassignments().get().size();
    }

    /** Returns moves without too many for any worker that gets or gives a replica. */
    static List<Move> next(List<Move> left) {
        List<Move> batch = new ArrayList<>();
        Map<Integer, Integer> count = new HashMap<>();
        for (Move each : left) {
            Set<Integer> changed = each.workers();
            changed.removeIf(id -> each.from().contains(id) && each.to().contains(id));
            if (changed.stream().allMatch(id -> count.getOrDefault(id, 0) < MOVES_OF_A_WORKER)) {
                changed.forEach(id -> count.merge(id, 1, Integer::sum));
                batch.add(each);
            }
        }
        return batch;
    }

    static ConfigResource worker(int id) {
        return new ConfigResource(ConfigResource.Type.BROKER, "" + id);
    }

    ConfigResource ofTopic() {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    Config configs(ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    /** Sets the configs, or removes those without a value, and waits until all show. */
    void alter(ConfigResource resource, Map<String, String> values) throws Exception {
        if (values.isEmpty())
            return;
        Collection<AlterConfigOp> changes = new ArrayList<>();
        values.forEach((name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value),
            value == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        await(() -> {
            Config now = configs(resource);
            return values.entrySet().stream().allMatch(each -> {
                ConfigEntry entry = now.get(each.getKey());
                boolean isEmpty = entry == null || entry.value() == null || entry.value().isEmpty();
                return isEmpty ? each.getValue() == null : entry.value().equals(each.getValue());
            });
        }, values + " of " + resource);
    }

    void setThrottles(List<Move> batch, String rate) throws Exception {
        for (int id : batch.stream().flatMap(each -> each.workers().stream()).collect(Collectors.toSet())) {
            Config now = configs(worker(id));
            Map<String, String> values = new HashMap<>();
            for (String name : RATES)
                if (now.get(name) == null) {
                    values.put(name, rate);
                    ownRates.computeIfAbsent(id, each -> new TreeSet<>()).add(name);
                }
            alter(worker(id), values);
        }
        changeReplicas(batch, true);
    }

    void clearThrottles(List<Move> batch) throws Exception {
        for (Map.Entry<Integer, Set<String>> each : ownRates.entrySet()) {
            Map<String, String> values = new HashMap<>();
            each.getValue().forEach(name -> values.put(name, null));
            alter(worker(each.getKey()), values);
        }
        ownRates.clear();
        changeReplicas(batch, false);
    }

    /** Adds the pairs of the batch to those of the topic, or removes them. */
    void changeReplicas(List<Move> batch, boolean add) throws Exception {
        Set<String> pairs = batch.stream().flatMap(each -> each.pairs().stream()).collect(Collectors.toSet());
        Config now = configs(ofTopic());
        Map<String, String> values = new HashMap<>();
        for (String name : REPLICAS) {
            if (now.get(name).value().equals("*"))
                continue;
            Set<String> all = new TreeSet<>(Arrays.asList(now.get(name).value().split(",")));
            all.remove("");
            if (add) all.addAll(pairs); else all.removeAll(pairs);
            values.put(name, all.isEmpty() ? null : String.join(",", all));
        }
        alter(ofTopic(), values);
    }

    /** Moves all replicas of the topic on the worker to its other directory. */
    void moveBetweenDirectories(int id) throws Exception {
        Map<TopicPartitionReplica, String> targets = new HashMap<>();
        admin.describeLogDirs(List.of(id)).allDescriptions().get().get(id).forEach((directory, description) -> {
            Path path = Path.of(directory);
            String other = path.resolveSibling(path.endsWith("a") ? "b" : "a").toString();
            description.replicaInfos().keySet().stream().filter(each -> each.topic().equals(topic)).forEach(each ->
                targets.put(new TopicPartitionReplica(topic, each.partition(), id), other));
        });
        seen.put("replicasToOtherDirectories", targets.size());
        admin.alterReplicaLogDirs(targets).all().get();
        await(() -> admin.describeReplicaLogDirs(targets.keySet()).all().get().entrySet().stream().allMatch(each ->
            targets.get(each.getKey()).equals(each.getValue().getCurrentReplicaLogDir())
                && each.getValue().getFutureReplicaLogDir() == null), "the other directories");
    }

    void electLeaders() throws Exception {
        Set<TopicPartition> all = new HashSet<>();
        partitions().forEach(each -> all.add(new TopicPartition(topic, each.partition())));
        Set<String> errors = new TreeSet<>();
        admin.electLeaders(ElectionType.PREFERRED, all).partitions().get().values().forEach(each ->
            each.filter(error -> !(error instanceof ElectionNotNeededException)).ifPresent(error ->
                errors.add(error.toString())));
        seen.put("errorsOfElections", errors);
        await(() -> partitions().stream().allMatch(each -> each.leader().id() == each.replicas().get(0).id()),
            "preferred leaders");
    }
}
