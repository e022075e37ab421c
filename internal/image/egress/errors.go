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

// Error is a failure with a text that is safe to show. Any other error may contain text from a server.
type Error struct{ text string }

func (e *Error) Error() string { return e.text }

// Errorf returns an Error. The arguments must not contain text from a server.
func Errorf(format string, args ...any) *Error { return &Error{fmt.Sprintf(format, args...)} }

// StatusError returns the Error for an HTTP status other than success. It ignores the server's
// reason phrase.
func StatusError(code int) *Error {
	return Errorf("%s", strings.TrimSpace(fmt.Sprintf("the server answered %d %s", code, http.StatusText(code))))
}

// Explain returns an Error with a fixed text that says why a request failed. It never quotes err,
// since an error of a library may repeat the response of a server, which users must not see.
func Explain(err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	for _, r := range reasons {
		if r.is(err) {
			return Errorf("%s", r.text)
		}
	}
	return Errorf("the request failed for an unknown reason, such as an invalid answer")
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
	{isErrorType[x509.UnknownAuthorityError], "TLS: the certificate was not issued by an authority that this host trusts"},
	{isErrorType[x509.HostnameError], "TLS: the certificate is for another name"},
	{isErrorType[x509.CertificateInvalidError], "TLS: the certificate is not valid, has expired, or is not valid yet"},
	{isErrorType[*tls.CertificateVerificationError], "TLS: the certificate is not valid"},
	{isErrorType[tls.RecordHeaderError], "the server does not support TLS"},
	{containsText("server gave HTTP response to HTTPS client"), "the server does not support TLS"},
	{isErrorType[tls.AlertError], "TLS: the server ended the handshake"},
	{isTimeout, "timeout"},
	{isError(context.Canceled), "cancelled"},
	{isError(io.ErrUnexpectedEOF), "the content was cut off (unexpected EOF)"},
	{isError(io.EOF), "the connection was closed"},
	{containsText("error verifying"), "content does not match its digest"},
	{containsText("does not match requested digest"), "content does not match its digest"},
	{containsText("does not match expected size"), "the size of the content differs from the size that the image states"},
	{containsText("no child with platform"), "no image for linux/amd64"},
	{containsText("unsupported MediaType"), "the format of the image is not supported"},
	{containsText("www-authenticate"), "the registry refers to a token server that is not allowed"},
	{containsText("token-server redirect"), "the registry refers to a token server that is not allowed"},
	{containsText("bearer response"), "the token server gave no token"},
	{containsText("foreign layer"), "a layer is stored on another host, which is not allowed (foreign layer)"},
	{isError(gzip.ErrHeader), "the content is damaged"},
	{isError(gzip.ErrChecksum), "the content is damaged"},
	{isErrorType[flate.CorruptInputError], "the content is damaged"},
	{isError(tar.ErrHeader), "a layer is not a tar archive"},
	{containsText("unsupported protocol scheme"), "the URL is neither http:// nor https://"},
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
	return (ok && timeout.Timeout()) || errors.Is(err, context.DeadlineExceeded)
}

// containsText matches errors by their text, for errors that lack a specific type. The text is only
// compared, never shown.
func containsText(words string) func(error) bool {
	return func(err error) bool { return strings.Contains(err.Error(), words) }
}
