import com.nimbusds.jose.JOSEException;
import com.nimbusds.jose.JWSVerifier;
import com.nimbusds.jose.crypto.ECDSAVerifier;
import com.nimbusds.jose.crypto.Ed25519Verifier;
import com.nimbusds.jose.crypto.RSASSAVerifier;
import com.nimbusds.jose.jwk.ECKey;
import com.nimbusds.jose.jwk.JWK;
import com.nimbusds.jose.jwk.JWKSet;
import com.nimbusds.jose.jwk.OctetKeyPair;
import com.nimbusds.jose.jwk.RSAKey;
import com.nimbusds.jwt.JWTClaimsSet;
import com.nimbusds.jwt.SignedJWT;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.text.ParseException;

final class Verify {
  /**
   * Checks the signature, issuer, audience, time and body of a notification. The caller still has
   * to compare the token, and to remember `jti`.
   *
   * @param headers by name in lower case
   * @param keys those of the sender, each with its `alg`
   */
  static JWTClaimsSet verify(Map<String, List<String>> headers, byte[] body, JWKSet keys,
      String issuer, String audience, Instant now)
      throws GeneralSecurityException, JOSEException, ParseException {
    SignedJWT jwt = SignedJWT.parse(find(headers));
    String kid = jwt.getHeader().getKeyID();
    // The sender's key decides about the algorithm, not the header.
    JWK key = keys.getKeys().stream().filter(one -> kid != null && kid.equals(one.getKeyID())
        && jwt.getHeader().getAlgorithm().equals(one.getAlgorithm())).findFirst().orElse(null);
    require(key != null, "no key of this sender has this kid and alg");
    require(jwt.verify(verifier(key)), "the signature is invalid");
    JWTClaimsSet claims = jwt.getJWTClaimsSet();
    byte[] digest = MessageDigest.getInstance("SHA-256").digest(body);
    require(HexFormat.of().formatHex(digest).equals(claims.getStringClaim("request_body_sha256")),
        "signed over another body");
    String id = claims.getJWTID();
    require(claims.getIssueTime() != null && claims.getExpirationTime() != null
        && id != null && !id.isEmpty(), "iat, exp and jti are required");
    Duration age = Duration.between(claims.getIssueTime().toInstant(), now).abs();
    require(age.compareTo(Duration.ofMinutes(5)) <= 0
        && !now.isAfter(claims.getExpirationTime().toInstant().plusSeconds(60)),
        "the time is out of range");
    require(issuer.equals(claims.getIssuer()) && claims.getAudience().contains(audience),
        "wrong issuer or audience");
    require(headers.getOrDefault("webhook-id", List.of(id)).equals(List.of(id)),
        "webhook-id and jti differ");
    return claims;
  }

  private static JWSVerifier verifier(JWK key) throws JOSEException {
    if (key instanceof ECKey ec) return new ECDSAVerifier(ec);
    if (key instanceof RSAKey rsa) return new RSASSAVerifier(rsa);
    return new Ed25519Verifier((OctetKeyPair) key);
  }

  /** Returns the JWT: X-A2A-Signature, else a Bearer token. */
  private static String find(Map<String, List<String>> headers) throws GeneralSecurityException {
    List<String> own = headers.getOrDefault("x-a2a-signature", List.of());
    if (own.size() == 1) return own.get(0);
    List<String> values = headers.getOrDefault("authorization", List.of());
    require(own.isEmpty() && values.size() == 1, "expected one Authorization");
    String value = values.get(0);
    require(value.regionMatches(true, 0, "Bearer ", 0, 7), "no Bearer token");
    return value.substring(7).strip();
  }

  private static void require(boolean holds, String reason) throws GeneralSecurityException {
    if (!holds) throw new GeneralSecurityException(reason);
  }
}
