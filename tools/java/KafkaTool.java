import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the tests use to look at Kafka with Apache's own client, never with the project's.
 *
 * <p>{@code KafkaTool OP --bootstrap HOST:PORT [--config FILE] [--name value ...]} runs one operation and prints JSON
 * lines. {@code KafkaTool serve} reads requests ({@code {"id":1,"op":"read","bootstrap":"...","topic":"t"}}), one per
 * line, runs them concurrently, and answers each with any number of {@code {"id":1,"rows":[...]}} followed by exactly
 * one {@code {"id":1,"ok":{...}}} or {@code {"id":1,"error":"..."}}; it ends when stdin closes. Keys, values and header
 * values are base64. `crates/testkit/src/java.rs` is the other side.
 */
public final class KafkaTool {
  static final ObjectMapper JSON = new ObjectMapper();
  static final Map<String, Admin> ADMINS = new ConcurrentHashMap<>();
  static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new ConcurrentHashMap<>();
  /** Transactions left open on purpose, by bootstrap and transactional id. */
  static final Map<String, KafkaProducer<byte[], byte[]>> OPEN = new ConcurrentHashMap<>();

  /** Receives the rows of an operation, each a compact JSON array, in batches. */
  interface Rows {
    void write(ArrayNode rows) throws Exception;
  }

  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // libraries that print must not break the JSON lines
    if (args.length == 0) {
      System.err.println("usage: KafkaTool serve | OP --bootstrap HOST:PORT [--config FILE] [--name value ...]");
      System.exit(2);
    }
    if (args[0].equals("serve")) {
      serve(out);
      System.exit(0);
    }
    ObjectNode request = commandLine(args);
    try {
      ObjectNode ok = run(request, rows -> { for (JsonNode row : rows) out.println(named(request, row)); });
      if (ok.size() > 0) out.println(ok);
      out.flush();
      System.exit(0);
    } catch (Throwable e) {
      System.err.println(message(e));
      System.exit(1);
    }
  }

  static void serve(PrintStream out) throws Exception {
    var pool = Executors.newCachedThreadPool(task -> { var t = new Thread(task); t.setDaemon(true); return t; });
    var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 20);
    for (String line; (line = in.readLine()) != null; ) {
      String text = line;
      pool.execute(() -> {
        long id = -1;
        ObjectNode answer = JSON.createObjectNode();
        try {
          ObjectNode request = (ObjectNode) JSON.readTree(text);
          id = request.path("id").asLong(-1);
          long same = id;
          answer.set("ok", run(request, rows -> emit(out, JSON.createObjectNode().put("id", same).set("rows", rows))));
        } catch (Throwable e) {
          answer.put("error", message(e));
        }
        emit(out, answer.put("id", id));
      });
    }
  }

  static void emit(PrintStream out, JsonNode answer) {
    byte[] line;
    try {
      line = JSON.writeValueAsBytes(answer);
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
    synchronized (out) {
      out.write(line, 0, line.length);
      out.write('\n');
      out.flush();
    }
  }

  static String message(Throwable e) {
    while (e instanceof ExecutionException && e.getCause() != null) e = e.getCause();
    String text = e.getClass().getSimpleName() + ": " + e.getMessage();
    return e.getCause() == null ? text : text + " (" + e.getCause() + ")";
  }

  static ObjectNode commandLine(String[] args) throws Exception {
    ObjectNode request = JSON.createObjectNode().put("op", args[0]);
    for (int i = 1; i < args.length; i += 2) {
      if (!args[i].startsWith("--") || i + 1 == args.length) throw new IllegalArgumentException("expected --name value, found " + args[i]);
      String name = args[i].substring(2).replace('-', '_');
      if (name.equals("config")) {
        Properties p = new Properties();
        try (var file = new FileReader(args[i + 1], StandardCharsets.UTF_8)) { p.load(file); }
        ObjectNode config = request.putObject("config");
        p.forEach((k, v) -> config.put((String) k, (String) v));
        continue;
      }
      JsonNode value;
      try {
        value = JSON.readTree(args[i + 1]);
      } catch (Exception notJson) {
        value = JSON.getNodeFactory().textNode(args[i + 1]);
      }
      request.set(name, value);
    }
    if (args[0].equals("write") && !request.has("rows")) { // stdin: partition<TAB>key<TAB>value, an empty key is null
      ArrayNode rows = request.putArray("rows");
      var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
      for (String line; (line = in.readLine()) != null; ) {
        String[] f = line.split("\t", 3);
        if (f.length < 3) throw new IllegalArgumentException("expected partition<TAB>key<TAB>value, found " + line);
        ArrayNode row = rows.addArray();
        if (f[0].isEmpty()) row.addNull(); else row.add(Integer.parseInt(f[0]));
        if (f[1].isEmpty()) row.addNull(); else row.add(f[1].getBytes(StandardCharsets.UTF_8));
        row.add(f[2].getBytes(StandardCharsets.UTF_8));
      }
    }
    return request;
  }

  /** On the command line rows of `read` are printed as objects. */
  static JsonNode named(ObjectNode request, JsonNode row) {
    if (!request.path("op").asText().equals("read")) return row;
    ObjectNode o = JSON.createObjectNode();
    String[] names = {"partition", "offset", "timestamp", "key", "value", "headers"};
    for (int i = 0; i < names.length; i++) o.set(names[i], row.get(i));
    if (request.path("raw").asBoolean(false)) {
      for (String name : List.of("key", "value")) {
        if (!o.get(name).isNull()) o.put(name, new String(Base64.getDecoder().decode(o.get(name).asText()), StandardCharsets.UTF_8));
      }
    }
    return o;
  }

  static ObjectNode run(ObjectNode r, Rows rows) throws Exception {
    ObjectNode ok = JSON.createObjectNode();
    switch (text(r, "op")) {
      case "hello" -> ok.put("version", org.apache.kafka.common.utils.AppInfoParser.getVersion());
      case "format" -> format(r);
      case "cluster" -> cluster(r, ok);
      case "read" -> read(r, rows, ok);
      case "count" -> { read(r, batch -> {}, ok); }
      case "write" -> write(r, ok);
      case "transaction" -> transaction(r, ok);
      case "end-transaction" -> endTransaction(r);
      case "create-topic" -> createTopic(r);
      case "delete-topic" -> admin(r).deleteTopics(List.of(text(r, "topic"))).all().get(wait(r), TimeUnit.MILLISECONDS);
      case "list-topics" -> { ArrayNode names = ok.putArray("topics"); admin(r).listTopics().names().get(wait(r), TimeUnit.MILLISECONDS).forEach(names::add); }
      case "create-partitions" -> admin(r).createPartitions(Map.of(text(r, "topic"), NewPartitions.increaseTo(r.path("partitions").asInt()))).all().get(wait(r), TimeUnit.MILLISECONDS);
      case "alter-topic" -> alterTopic(r);
      case "allow" -> allow(r);
      case "describe-topic" -> describeTopic(r, ok);
      case "end-offsets" -> endOffsets(r, ok);
      case "delete-records" -> admin(r).deleteRecords(Map.of(partition(r), RecordsToDelete.beforeOffset(r.path("before").asLong()))).all().get(wait(r), TimeUnit.MILLISECONDS);
      case "transactions" -> transactions(r, ok);
      case "open-producers" -> openProducers(r, ok);
      case "terminate-transaction" -> admin(r).forceTerminateTransaction(text(r, "transactional_id")).result().get(wait(r), TimeUnit.MILLISECONDS);
      case "features" -> features(r, ok);
      case "group-offsets" -> groupOffsets(r, ok);
      case "elect-leader" -> electLeader(r);
      case "reassign" -> reassign(r);
      case "forget" -> forget(text(r, "bootstrap"));
      default -> throw new IllegalArgumentException("no operation " + r.path("op"));
    }
    return ok;
  }

  static String text(JsonNode r, String name) {
    JsonNode v = r.path(name);
    if (v.isMissingNode() || v.isNull()) throw new IllegalArgumentException("missing " + name);
    return v.asText();
  }

  static long wait(JsonNode r) {
    return r.path("timeout_ms").asLong(30_000);
  }

  static TopicPartition partition(JsonNode r) {
    return new TopicPartition(text(r, "topic"), r.path("partition").asInt());
  }

  /** Settings of every client: the caller's, over short waits so that a broker that comes back is seen at once. */
  static Properties settings(JsonNode r) {
    Properties p = new Properties();
    p.put("bootstrap.servers", text(r, "bootstrap"));
    p.put("reconnect.backoff.ms", "20");
    p.put("reconnect.backoff.max.ms", "200");
    p.put("retry.backoff.ms", "20");
    p.put("retry.backoff.max.ms", "200");
    r.path("config").properties().forEach(e -> p.put(e.getKey(), e.getValue().asText()));
    return p;
  }

  static String key(JsonNode r) {
    return text(r, "bootstrap") + " " + r.path("config");
  }

  static Admin admin(JsonNode r) {
    return ADMINS.computeIfAbsent(key(r), k -> Admin.create(settings(r)));
  }

  static void forget(String bootstrap) {
    Duration now = Duration.ZERO;
    for (var map : List.of(PRODUCERS, OPEN)) {
      map.entrySet().removeIf(e -> { if (!e.getKey().startsWith(bootstrap + " ")) return false; e.getValue().close(now); return true; });
    }
    ADMINS.entrySet().removeIf(e -> { if (!e.getKey().startsWith(bootstrap + " ")) return false; e.getValue().close(now); return true; });
  }

  static void format(JsonNode r) {
    List<String> args = new ArrayList<>();
    args.add("format");
    r.path("args").forEach(a -> args.add(a.asText()));
    var said = new ByteArrayOutputStream();
    int code = kafka.tools.StorageTool.execute(args.toArray(String[]::new), new PrintStream(said, true));
    if (code != 0) throw new IllegalStateException("storage format ended with " + code + ": " + said.toString(StandardCharsets.UTF_8));
  }

  static void cluster(JsonNode r, ObjectNode ok) throws Exception {
    var c = admin(r).describeCluster(new DescribeClusterOptions().timeoutMs((int) wait(r)));
    ok.put("cluster_id", c.clusterId().get());
    Node controller = c.controller().get();
    ok.put("controller", controller == null ? -1 : controller.id());
    ArrayNode nodes = ok.putArray("nodes");
    for (Node n : c.nodes().get()) nodes.add(n.id());
  }

  static void features(JsonNode r, ObjectNode ok) throws Exception {
    ObjectNode finalized = ok.putObject("finalized");
    admin(r).describeFeatures().featureMetadata().get(wait(r), TimeUnit.MILLISECONDS).finalizedFeatures().forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
  }

  static void createTopic(JsonNode r) throws Exception {
    var topic = new NewTopic(text(r, "topic"), Optional.of(r.path("partitions").asInt(1)), r.has("replication") ? Optional.of((short) r.path("replication").asInt()) : Optional.empty());
    Map<String, String> config = new HashMap<>();
    r.path("topic_config").properties().forEach(e -> config.put(e.getKey(), e.getValue().asText()));
    Admin a = admin(r);
    a.createTopics(List.of(topic.configs(config))).all().get(wait(r), TimeUnit.MILLISECONDS);
    // The answer comes before every broker knows the leaders.
    long end = System.currentTimeMillis() + wait(r);
    while (true) {
      try {
        var d = a.describeTopics(List.of(topic.name())).allTopicNames().get(wait(r), TimeUnit.MILLISECONDS).get(topic.name());
        if (d.partitions().stream().allMatch(p -> p.leader() != null && !p.leader().isEmpty())) return;
      } catch (ExecutionException e) {
        if (System.currentTimeMillis() > end) throw e;
      }
      if (System.currentTimeMillis() > end) throw new IllegalStateException("topic " + topic.name() + " has no leaders");
      Thread.sleep(20);
    }
  }

  static void alterTopic(JsonNode r) throws Exception {
    Collection<AlterConfigOp> ops = new ArrayList<>();
    r.path("topic_config").properties().forEach(e -> ops.add(new AlterConfigOp(new ConfigEntry(e.getKey(), e.getValue().asText()), AlterConfigOp.OpType.SET)));
    admin(r).incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, text(r, "topic")), ops)).all().get(wait(r), TimeUnit.MILLISECONDS);
  }

  static void allow(JsonNode r) throws Exception {
    var type = PatternType.valueOf(r.path("prefixed").asBoolean() ? "PREFIXED" : "LITERAL");
    var resource = new ResourcePattern(ResourceType.valueOf(text(r, "resource")), text(r, "name"), type);
    var entry = new AccessControlEntry("User:" + text(r, "user"), "*", AclOperation.valueOf(text(r, "operation")), AclPermissionType.ALLOW);
    admin(r).createAcls(List.of(new AclBinding(resource, entry))).all().get(wait(r), TimeUnit.MILLISECONDS);
  }

  static void describeTopic(JsonNode r, ObjectNode ok) throws Exception {
    var d = admin(r).describeTopics(List.of(text(r, "topic"))).allTopicNames().get(wait(r), TimeUnit.MILLISECONDS).get(text(r, "topic"));
    ok.put("topic_id", d.topicId().toString());
    ArrayNode ps = ok.putArray("partitions");
    for (var p : d.partitions()) {
      ObjectNode o = ps.addObject().put("partition", p.partition()).put("leader", p.leader() == null ? -1 : p.leader().id());
      ArrayNode replicas = o.putArray("replicas");
      p.replicas().forEach(n -> replicas.add(n.id()));
      ArrayNode isr = o.putArray("isr");
      p.isr().forEach(n -> isr.add(n.id()));
    }
  }

  static void endOffsets(JsonNode r, ObjectNode ok) throws Exception {
    try (var c = consumer(r)) {
      var ps = assignAll(c, text(r, "topic"));
      Duration wait = Duration.ofMillis(wait(r));
      var begin = c.beginningOffsets(ps, wait);
      ArrayNode list = ok.putArray("partitions");
      new TreeMap<>(byNumber(c.endOffsets(ps, wait))).forEach((p, o) -> list.addObject().put("partition", p).put("end", o).put("begin", begin.get(new TopicPartition(text(r, "topic"), p))));
    }
  }

  static Map<Integer, Long> byNumber(Map<TopicPartition, Long> offsets) {
    Map<Integer, Long> m = new HashMap<>();
    offsets.forEach((tp, o) -> m.put(tp.partition(), o));
    return m;
  }

  static KafkaConsumer<byte[], byte[]> consumer(JsonNode r) {
    Properties p = settings(r);
    p.put("isolation.level", r.path("isolation").asText("read_committed"));
    p.put("auto.offset.reset", "none");
    p.put("enable.auto.commit", "false");
    p.put("max.poll.records", "20000");
    p.put("fetch.max.wait.ms", "50");
    p.put("max.partition.fetch.bytes", String.valueOf(8 << 20));
    return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  static List<TopicPartition> assignAll(KafkaConsumer<?, ?> c, String topic) {
    var infos = c.partitionsFor(topic);
    if (infos == null || infos.isEmpty()) throw new IllegalArgumentException("no topic " + topic);
    var ps = new ArrayList<TopicPartition>();
    infos.forEach(i -> ps.add(new TopicPartition(topic, i.partition())));
    c.assign(ps);
    return ps;
  }

  /** All partitions from `from` (or the beginning) to the last stable offset (read_committed) or the high watermark. */
  static void read(JsonNode r, Rows rows, ObjectNode ok) throws Exception {
    long deadline = System.currentTimeMillis() + r.path("timeout_ms").asLong(60_000);
    long n = 0;
    try (var c = consumer(r)) {
      var ps = assignAll(c, text(r, "topic"));
      var end = c.endOffsets(ps);
      c.seekToBeginning(ps);
      r.path("from").properties().forEach(e -> c.seek(new TopicPartition(text(r, "topic"), Integer.parseInt(e.getKey())), e.getValue().asLong()));
      Set<TopicPartition> left = new HashSet<>(ps);
      while (true) {
        left.removeIf(tp -> { if (c.position(tp) < end.get(tp)) return false; c.pause(List.of(tp)); return true; });
        if (left.isEmpty()) break;
        if (System.currentTimeMillis() > deadline) throw new IllegalStateException("timed out after " + n + " records; not at the end: " + left);
        ArrayNode batch = JSON.createArrayNode();
        for (ConsumerRecord<byte[], byte[]> m : c.poll(Duration.ofMillis(200))) {
          if (m.offset() >= end.get(new TopicPartition(m.topic(), m.partition()))) continue;
          n++;
          ArrayNode row = batch.addArray().add(m.partition()).add(m.offset()).add(m.timestamp()).add(m.key()).add(m.value());
          ArrayNode headers = row.addArray();
          for (Header h : m.headers()) headers.addArray().add(h.key()).add(h.value());
          if (batch.size() == 1000) { rows.write(batch); batch = JSON.createArrayNode(); }
        }
        if (!batch.isEmpty()) rows.write(batch);
      }
      ObjectNode to = ok.putObject("end");
      end.forEach((tp, o) -> to.put(String.valueOf(tp.partition()), o));
    }
    ok.put("count", n);
  }

  static KafkaProducer<byte[], byte[]> producer(JsonNode r, String transactionalId) {
    Properties p = new Properties();
    p.put("linger.ms", "5");
    p.put("batch.size", "131072");
    p.put("acks", "all");
    p.put("delivery.timeout.ms", "180000");
    p.put("request.timeout.ms", "10000");
    p.put("max.block.ms", String.valueOf(wait(r)));
    p.putAll(settings(r));
    if (transactionalId != null) {
      p.put("transactional.id", transactionalId);
      p.put("transaction.timeout.ms", String.valueOf(r.path("transaction_timeout_ms").asInt(60_000)));
    }
    return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
  }

  /** Rows: [partition|null, key|null, value|null, timestamp?|null, [[name, value], ...]?]. Returns when all are acknowledged. */
  static long send(KafkaProducer<byte[], byte[]> p, String topic, JsonNode rows, ObjectNode ok) throws Exception {
    List<Future<RecordMetadata>> sent = new ArrayList<>();
    for (JsonNode row : rows) {
      JsonNode number = row.path(0), ts = row.path(3);
      List<Header> headers = new ArrayList<>();
      for (JsonNode h : row.path(4)) headers.add(new RecordHeader(h.get(0).asText(), bytes(h.get(1))));
      Integer partition = number.isNumber() ? Integer.valueOf(number.asInt()) : null;
      Long timestamp = ts.isNumber() ? Long.valueOf(ts.asLong()) : null;
      sent.add(p.send(new ProducerRecord<>(topic, partition, timestamp, bytes(row.path(1)), bytes(row.path(2)), headers)));
    }
    p.flush();
    Map<String, Long> last = new TreeMap<>();
    for (var f : sent) {
      RecordMetadata m = f.get();
      last.merge(String.valueOf(m.partition()), m.offset(), Math::max);
    }
    ObjectNode offsets = ok.putObject("last_offset");
    last.forEach(offsets::put);
    ok.put("written", sent.size());
    return sent.size();
  }

  static byte[] bytes(JsonNode v) throws Exception {
    return v == null || v.isNull() || v.isMissingNode() ? null : v.binaryValue();
  }

  static void write(JsonNode r, ObjectNode ok) throws Exception {
    var p = PRODUCERS.computeIfAbsent(key(r), k -> producer(r, null));
    send(p, text(r, "topic"), r.path("rows"), ok);
  }

  static void transaction(JsonNode r, ObjectNode ok) throws Exception {
    String id = text(r, "transactional_id"), end = r.path("end").asText("commit"), name = text(r, "bootstrap") + " " + id;
    var p = OPEN.remove(name);
    try {
      if (p == null) { p = producer(r, id); p.initTransactions(); }
      p.beginTransaction();
      send(p, text(r, "topic"), r.path("rows"), ok);
      switch (end) {
        case "commit" -> p.commitTransaction();
        case "abort" -> p.abortTransaction();
        case "open" -> { OPEN.put(name, p); p = null; }
        default -> throw new IllegalArgumentException("end is commit, abort or open, not " + end);
      }
    } finally {
      if (p != null) p.close(Duration.ZERO);
    }
  }

  static void endTransaction(JsonNode r) {
    String id = text(r, "transactional_id");
    var p = OPEN.remove(text(r, "bootstrap") + " " + id);
    if (p == null) throw new IllegalArgumentException("no transaction was left open under " + id);
    try {
      if (r.path("end").asText("commit").equals("commit")) p.commitTransaction(); else p.abortTransaction();
    } finally {
      p.close(Duration.ZERO);
    }
  }

  /** The admin client gives up with an IllegalArgumentException when a broker goes between its two steps: asked again. */
  static Map<Integer, Collection<TransactionListing>> listTransactions(Admin a, long timeoutMs) throws Exception {
    long end = System.nanoTime() + timeoutMs * 1_000_000;
    while (true) {
      try {
        return a.listTransactions(new ListTransactionsOptions().timeoutMs((int) timeoutMs)).allByBrokerId().get(timeoutMs, TimeUnit.MILLISECONDS);
      } catch (ExecutionException e) {
        boolean brokerGone = e.getCause() instanceof IllegalArgumentException || e.getCause() instanceof RetriableException;
        if (!brokerGone || System.nanoTime() > end) throw e;
      } catch (IllegalArgumentException e) {
        if (System.nanoTime() > end) throw e;
      }
      Thread.sleep(50);
    }
  }

  static void transactions(JsonNode r, ObjectNode ok) throws Exception {
    Admin a = admin(r);
    var list = listTransactions(a, wait(r));
    ArrayNode out = ok.putArray("transactions");
    for (var broker : list.entrySet()) {
      for (TransactionListing t : broker.getValue()) {
        ObjectNode o = out.addObject().put("transactional_id", t.transactionalId()).put("state", t.state().toString()).put("producer_id", t.producerId()).put("coordinator", broker.getKey());
        if (!r.path("describe").asBoolean(true)) continue;
        try {
          var d = a.describeTransactions(List.of(t.transactionalId())).all().get(wait(r), TimeUnit.MILLISECONDS).get(t.transactionalId());
          o.put("state", d.state().toString()).put("producer_id", d.producerId()).put("producer_epoch", d.producerEpoch()).put("timeout_ms", d.transactionTimeoutMs());
          ArrayNode ps = o.putArray("partitions");
          d.topicPartitions().forEach(tp -> ps.add(tp.toString()));
        } catch (ExecutionException gone) {
          o.put("describe_error", message(gone));
        }
      }
    }
  }

  /** What is open by the partitions' own account: also a transaction that its coordinator knows nothing of. */
  static void openProducers(JsonNode r, ObjectNode ok) throws Exception {
    List<TopicPartition> ps = new ArrayList<>();
    String topic = text(r, "topic");
    var d = admin(r).describeTopics(List.of(topic)).allTopicNames().get(wait(r), TimeUnit.MILLISECONDS).get(topic);
    d.partitions().forEach(p -> ps.add(new TopicPartition(topic, p.partition())));
    ArrayNode out = ok.putArray("producers");
    admin(r).describeProducers(ps).all().get(wait(r), TimeUnit.MILLISECONDS).forEach((tp, state) -> state.activeProducers().forEach(p -> {
      if (p.currentTransactionStartOffset().isEmpty()) return;
      out.addObject().put("partition", tp.partition()).put("producer_id", p.producerId()).put("producer_epoch", p.producerEpoch()).put("start_offset", p.currentTransactionStartOffset().getAsLong());
    }));
  }

  static void groupOffsets(JsonNode r, ObjectNode ok) throws Exception {
    var offsets = admin(r).listConsumerGroupOffsets(text(r, "group")).partitionsToOffsetAndMetadata().get(wait(r), TimeUnit.MILLISECONDS);
    ArrayNode out = ok.putArray("offsets");
    offsets.forEach((tp, o) -> { if (o != null) out.addObject().put("topic", tp.topic()).put("partition", tp.partition()).put("offset", o.offset()); });
  }

  /** Preferred election: the first replica of the assignment becomes leader. */
  static void electLeader(JsonNode r) throws Exception {
    try {
      admin(r).electLeaders(ElectionType.PREFERRED, Set.of(partition(r))).all().get(wait(r), TimeUnit.MILLISECONDS);
    } catch (ExecutionException e) {
      if (!(e.getCause() instanceof ElectionNotNeededException)) throw e;
    }
  }

  /** Sets the replicas of one partition (the first is the preferred leader) and waits until the move is over. */
  static void reassign(JsonNode r) throws Exception {
    List<Integer> replicas = new ArrayList<>();
    r.path("replicas").forEach(n -> replicas.add(n.asInt()));
    Admin a = admin(r);
    TopicPartition tp = partition(r);
    a.alterPartitionReassignments(Map.of(tp, Optional.of(new NewPartitionReassignment(replicas)))).all().get(wait(r), TimeUnit.MILLISECONDS);
    long end = System.currentTimeMillis() + wait(r);
    while (!a.listPartitionReassignments(Set.of(tp)).reassignments().get(wait(r), TimeUnit.MILLISECONDS).isEmpty()) {
      if (System.currentTimeMillis() > end) throw new IllegalStateException("reassignment of " + tp + " is not over");
      Thread.sleep(50);
    }
  }
}
