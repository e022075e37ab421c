// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"

	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// pullError is the cause of a failed pull as a fixed message, which does not quote the registry.
type pullError struct{ text string }

func (e pullError) Error() string { return e.text }

// failures are the causes of a failed pull; the first match applies. The engine's message is not
// passed on, because it quotes the registry. A user who names an image also chooses the
// registry, which may redirect to internal addresses whose answers the user must not see.
var failures = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?i)toomanyrequests|too many requests|rate limit`), "too many requests"},
	{regexp.MustCompile(`(?i)no matching manifest|does not match the specified platform`), "the image lacks a variant for this host's platform"},
	{regexp.MustCompile(`(?i)no space left on device`), "no space left on the engine's disk"},
	{regexp.MustCompile(`(?i)pull access denied`), "not found, or a login is needed"},
	{regexp.MustCompile(`(?i)unauthorized|authentication required`), "unauthorized"},
	{regexp.MustCompile(`(?i)\bdenied\b|forbidden`), "access denied"},
	{regexp.MustCompile(`(?i)not found|manifest unknown|name unknown|does not exist`), "not found"},
	{regexp.MustCompile(`(?i)no such host|server misbehaving|temporary failure in name resolution`), "name not resolved"},
	{regexp.MustCompile(`(?i)connection refused`), "connection refused"},
	{regexp.MustCompile(`(?i)connection reset`), "connection reset"},
	{regexp.MustCompile(`(?i)no route to host|network is unreachable`), "no route to the registry"},
	{regexp.MustCompile(`(?i)http response to https client`), "the registry does not support TLS"},
	{regexp.MustCompile(`(?i)x509|tls:|certificate`), "TLS: the registry's certificate or handshake is not accepted"},
	{regexp.MustCompile(`(?i)timeout|deadline exceeded|request canceled`), "timeout"},
	{regexp.MustCompile(`(?i)unexpected EOF|\bEOF\b`), "the connection was cut"},
	{regexp.MustCompile(`(?i)digest|checksum|verification failed`), "content does not match its digest"},
}

// explainError replaces an error from the engine, which may quote a registry, by a fixed message. It
// returns an error from the client unchanged, for example if the engine cannot be reached.
func explainError(err error) error {
	if engine.IsNetworkError(err) || engine.IsContextError(err) {
		return err
	}
	for _, f := range failures {
		if f.pattern.MatchString(err.Error()) {
			return pullError{statusCodeText(err) + f.text}
		}
	}
	return pullError{statusCodeText(err) + "the engine's log has the cause"}
}

// statusCodeText returns the HTTP status code of an error as the beginning of a message. It is empty
// for codes that say only that the pull failed.
func statusCodeText(err error) string {
	code := 0
	if message, ok := errors.AsType[*jsonstream.Error](err); ok {
		code = message.Code
	}
	for kind, c := range map[error]int{
		errdefs.ErrNotFound: http.StatusNotFound, errdefs.ErrUnauthenticated: http.StatusUnauthorized,
		errdefs.ErrPermissionDenied: http.StatusForbidden, errdefs.ErrInvalidArgument: http.StatusBadRequest,
	} {
		if errors.Is(err, kind) {
			code = c
		}
	}
	if code < 400 || code == http.StatusInternalServerError {
		return ""
	}
	return fmt.Sprintf("%d: ", code)
}
