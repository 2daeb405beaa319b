package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

var algorithms = []jose.SignatureAlgorithm{
	jose.ES256, jose.ES384, jose.EdDSA, jose.RS256, jose.PS256,
}

// Claims of a notification. TaskID, ConfigID and Seq may be missing.
type Claims struct {
	jwt.Claims
	TaskID     string `json:"taskId"`
	ConfigID   string `json:"configId"`
	Seq        int64  `json:"seq"`
	BodySHA256 string `json:"request_body_sha256"`
}

// Verify checks the signature, issuer, audience, time and body of a notification. The caller still
// has to compare the token, and to remember claims.ID.
func Verify(header http.Header, body []byte, keys jose.JSONWebKeySet,
	issuer, audience string, now time.Time) (*Claims, error) {
	compact, err := find(header)
	if err != nil {
		return nil, err
	}
	token, err := jwt.ParseSigned(compact, algorithms)
	if err != nil {
		return nil, err
	}
	// The sender's key decides about the algorithm, not the header.
	found := keys.Key(token.Headers[0].KeyID)
	at := slices.IndexFunc(found, func(key jose.JSONWebKey) bool {
		return key.Algorithm == token.Headers[0].Algorithm
	})
	if at < 0 {
		return nil, errors.New("no key of this sender has this kid and alg")
	}
	var claims Claims
	if err := token.Claims(found[at].Key, &claims); err != nil {
		return nil, err
	}
	digest := sha256.Sum256(body)
	if claims.BodySHA256 != hex.EncodeToString(digest[:]) {
		return nil, errors.New("signed over another body")
	}
	if claims.IssuedAt == nil || claims.Expiry == nil || claims.ID == "" {
		return nil, errors.New("iat, exp and jti are required")
	}
	if now.Sub(claims.IssuedAt.Time()).Abs() > 5*time.Minute ||
		now.After(claims.Expiry.Time().Add(time.Minute)) {
		return nil, errors.New("the time is out of range")
	}
	if claims.Issuer != issuer || !claims.Audience.Contains(audience) {
		return nil, fmt.Errorf("wrong issuer %q or audience %q", claims.Issuer, claims.Audience)
	}
	if id := header.Get("webhook-id"); id != "" && id != claims.ID {
		return nil, errors.New("webhook-id and jti differ")
	}
	return &claims, nil
}

// find returns the JWT: X-A2A-Signature, else a Bearer token.
func find(header http.Header) (string, error) {
	if values := header.Values("X-A2A-Signature"); len(values) > 0 {
		return values[0], nil
	}
	values := header.Values("Authorization")
	if len(values) != 1 {
		return "", errors.New("expected one Authorization")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errors.New("no Bearer token")
	}
	return strings.TrimSpace(token), nil
}
