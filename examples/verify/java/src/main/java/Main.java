import com.nimbusds.jose.jwk.JWKSet;
import com.nimbusds.jose.util.JSONObjectUtils;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Verifies the vectors in DIRECTORY: java Main DIRECTORY. Prints a line of JSON for each. */
final class Main {
  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]);
    JWKSet keys = JWKSet.load(folder.resolve("jwks.json").toFile());
    Map<String, Object> found =
        JSONObjectUtils.parse(Files.readString(folder.resolve("notifications.json")));
    Instant now = Instant.ofEpochSecond(((Number) found.get("now")).longValue());
    for (Map<String, Object> sender : objects(found, "senders")) {
      if (!"standard".equals(sender.get("profile"))
          || !((List<?>) sender.get("schemes")).contains("jwt")) continue;
      for (Map<String, Object> vector : objects(found, "vectors")) {
        Map<String, Object> request = object(vector.get("request"));
        if (!request.get("sender").equals(sender.get("name"))) continue;
        Map<String, Object> result = new HashMap<>(Map.of("id", vector.get("id"), "accepted", true));
        try {
          byte[] body = ((String) request.get("body")).getBytes(StandardCharsets.UTF_8);
          Verify.verify(headers(request), body, keys, (String) sender.get("issuer"),
              (String) sender.get("audience"), now);
        } catch (Exception refused) {
          result.put("accepted", false);
          result.put("reason", refused.toString());
        }
        System.out.println(JSONObjectUtils.toJSONString(result));
      }
    }
  }

  private static Map<String, List<String>> headers(Map<String, Object> request) {
    Map<String, List<String>> found = new HashMap<>();
    for (Object field : (List<?>) request.get("headers")) {
      List<?> pair = (List<?>) field;
      String name = ((String) pair.get(0)).toLowerCase(Locale.ROOT);
      found.computeIfAbsent(name, unused -> new ArrayList<>()).add((String) pair.get(1));
    }
    return found;
  }

  private static List<Map<String, Object>> objects(Map<String, Object> of, String name) {
    return ((List<?>) of.get(name)).stream().map(Main::object).toList();
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object> object(Object value) {
    return (Map<String, Object>) value;
  }
}
