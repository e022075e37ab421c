// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"archive/tar"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// Error is a failure that a fixed text describes. All other errors may contain words of a
// server.
type Error struct{ text string }

func (e *Error) Error() string { return e.text }

// Errorf returns an Error. The arguments must contain nothing that a server answered.
func Errorf(format string, args ...any) *Error { return &Error{fmt.Sprintf(format, args...)} }

// StatusError returns the Error for a response other than success. It leaves out the
// server's words.
func StatusError(code int) *Error {
	return Errorf("%s", strings.TrimSpace(fmt.Sprintf("the server answered %d %s", code, http.StatusText(code))))
}

// Explain returns why a request failed, in words of this package only. An error of a
// library may repeat the response of a server, which its readers must not see.
func Explain(err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	for _, r := range reasons {
		if r.is(err) {
			return Errorf("%s", r.text)
		}
	}
	return Errorf("the server's answer is not understood")
}

// reasons are the results of Explain; the first match counts.
var reasons = []struct {
	is   func(error) bool
	text string
}{
	{isNotFound, "name not resolved: there is no such host"},
	{isErrorType[*net.DNSError], "name not resolved"},
	{isError(syscall.ECONNREFUSED), "connection refused"},
	{isError(syscall.ECONNRESET), "connection reset"},
	{isError(syscall.EHOSTUNREACH), "no route to the host"},
	{isError(syscall.ENETUNREACH), "no route to the network"},
	{isErrorType[x509.UnknownAuthorityError], "TLS: the certificate is not by an authority that this host trusts"},
	{isErrorType[x509.HostnameError], "TLS: the certificate is for another name"},
	{isErrorType[x509.CertificateInvalidError], "TLS: the certificate is not valid, or not now"},
	{isErrorType[*tls.CertificateVerificationError], "TLS: the certificate is not valid"},
	{isErrorType[tls.RecordHeaderError], "the server does not support TLS"},
	{containsText("server gave HTTP response to HTTPS client"), "the server does not support TLS"},
	{isErrorType[tls.AlertError], "TLS: the server ended the handshake"},
	{isTimeout, "timeout"},
	{isError(context.Canceled), "it was cancelled"},
	{isError(io.ErrUnexpectedEOF), "it was cut off (unexpected EOF)"},
	{isError(io.EOF), "the connection was closed"},
	{containsText("error verifying"), "content does not match its digest"},
	{containsText("does not match requested digest"), "content does not match its digest"},
	{containsText("does not match expected size"), "it is not as large as the image says"},
	{containsText("no child with platform"), "it lacks an image for linux/amd64"},
	{containsText("unsupported MediaType"), "it is an image of a format that is not taken"},
	{containsText("www-authenticate"), "the registry names a token server that may not be asked"},
	{containsText("token-server redirect"), "the registry names a token server that may not be asked"},
	{containsText("bearer response"), "the token server gave no token"},
	{containsText("foreign layer"), "it has a layer elsewhere that may not be asked for"},
	{isError(gzip.ErrHeader), "it is damaged"},
	{isError(gzip.ErrChecksum), "it is damaged"},
	{isErrorType[flate.CorruptInputError], "it is damaged"},
	{isError(tar.ErrHeader), "it has a layer that is not an archive"},
	{containsText("unsupported protocol scheme"), "it leads to a URL that is neither http:// nor https://"},
	{containsText("malformed HTTP"), "the server does not support HTTP"},
}

func isError(want error) func(error) bool {
	return func(err error) bool { return errors.Is(err, want) }
}

func isErrorType[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func isNotFound(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// containsText matches errors that a library returns without a type, by their words. The
// words are only compared, never shown.
func containsText(words string) func(error) bool {
	return func(err error) bool { return strings.Contains(err.Error(), words) }
}
